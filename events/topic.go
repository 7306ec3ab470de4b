package events

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// ParseTopic splits a topic of the form kv@POD@MODEL, which llm-d uses for engines that
// connect to a gateway (llm-d-kv-cache, engineadapter/common.go). POD has no @. MODEL
// is the rest, whatever is in it.
func ParseTopic(topic string) (pod, model string, err error) {
	rest, ok := strings.CutPrefix(topic, "kv@")
	pod, model, split := strings.Cut(rest, "@")
	if !ok || !split || pod == "" || model == "" || !utf8.ValidString(topic) {
		return "", "", fmt.Errorf("events: topic %.100q is not kv@POD@MODEL", topic)
	}
	return pod, model, nil
}
