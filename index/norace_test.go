//go:build !race

package index

// raceDetector says whether the race detector slows everything down.
const raceDetector = false
