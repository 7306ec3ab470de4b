//go:build race

package discovery_test

// raceEnabled is set where the race detector makes all slower.
const raceEnabled = true
