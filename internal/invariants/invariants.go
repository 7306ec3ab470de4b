// Package invariants reports whether structures check themselves after each
// change: with the build tag invariants they do, and panic at what is wrong.
package invariants
