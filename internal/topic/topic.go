// Package topic reads the topics of engines that connect to a gateway.
package topic

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// Parse splits a topic of the form kv@POD@MODEL, which llm-d uses for engines that
// connect to a gateway (llm-d-kv-cache, engineadapter/common.go). POD has no @. MODEL
// is the rest, whatever is in it.
func Parse(text string) (pod, model string, err error) {
	rest, ok := strings.CutPrefix(text, "kv@")
	pod, model, split := strings.Cut(rest, "@")
	if !ok || !split || pod == "" || model == "" || !utf8.ValidString(text) {
		return "", "", fmt.Errorf("topic %.100q is not kv@POD@MODEL", text)
	}
	return pod, model, nil
}
