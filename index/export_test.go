package index

// RaceDetector is raceDetector for tests from outside.
const RaceDetector = raceDetector
