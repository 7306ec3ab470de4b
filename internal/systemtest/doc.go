// Package systemtest has the tests of the whole system and nothing else: an
// Indexer behind a subscriber, faults on the way, engines on libzmq and fake
// ones, recorded runs of the real engines, and the documents.
//
// The blocks that an engine reports to hold or reuse are the truth in all of them. The
// Indexer must never report more, and must report the same where nothing is lost for
// good.
package systemtest
