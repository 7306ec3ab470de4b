package events

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// ParseTopic splits a topic of llm-d's convention, kv@POD@MODEL
// (llm-d-kv-cache, engineadapter/common.go), as engines use it that connect to a
// bound subscriber. POD is what names the pod, often IP or IP:port; it has no
// '@'. MODEL is the rest, whatever is in it.
func ParseTopic(topic string) (pod, model string, err error) {
	rest, ok := strings.CutPrefix(topic, "kv@")
	pod, model, split := strings.Cut(rest, "@")
	if !ok || !split || pod == "" || model == "" || !utf8.ValidString(topic) {
		return "", "", fmt.Errorf("events: topic %.100q is not kv@POD@MODEL", topic)
	}
	return pod, model, nil
}
