// Package topic reads the topics of engines that connect to a gateway.
package topic

import (
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"
)

// ErrPool is wrapped by the error about the topic of a pool that several pods share.
var ErrPool = errors.New("it is of a pool of the fleet, and of no pod")

// Parse splits a topic of the form kv@POD@MODEL, which llm-d uses for engines that
// connect to a gateway (llm-d-kv-cache, engineadapter/common.go). POD has no @. MODEL
// is the rest, whatever is in it. In place of POD, llm-d's storage has SHARED_STORAGE or
// OBJECT_STORE (llmd_fs_backend/event_publisher.py), and LMCache's coordinator pool:NAME (PR
// 4768) for what no pod holds alone: an error that wraps ErrPool. So is the name of a pod that
// looks like that, as pool:8000 does: it cannot be known from a pool.
func Parse(text string) (pod, model string, err error) {
	rest, ok := strings.CutPrefix(text, "kv@")
	pod, model, split := strings.Cut(rest, "@")
	if !ok || !split || pod == "" || model == "" || !utf8.ValidString(text) {
		return "", "", fmt.Errorf("topic %.100q is not kv@POD@MODEL", text)
	}
	if pod == "SHARED_STORAGE" || pod == "OBJECT_STORE" || strings.HasPrefix(pod, "pool:") {
		return "", "", fmt.Errorf("topic %.100q: %w", text, ErrPool)
	}
	return pod, model, nil
}
