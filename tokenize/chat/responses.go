package chat

import "github.com/kvindex/kvindex/internal/jinja"

func parseResponses(*jinja.Dict, *counts) (otherBody, error) {
	return nil, notScorable("%s: not read", responses)
}
