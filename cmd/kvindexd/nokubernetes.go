//go:build !kubernetes

package main

import (
	"errors"

	"github.com/kvindex/kvindex/cmd/kvindexd/internal/config"
	"github.com/kvindex/kvindex/events"
)

// kubernetes refuses pods of Kubernetes: this build leaves out the client, which is as large as
// the rest of the program.
func kubernetes(*config.Config, events.Pod) (events.PodSource, error) {
	return events.PodSource{}, errors.New("kubernetes: this binary was built without it: build with -tags kubernetes, or use dns")
}
