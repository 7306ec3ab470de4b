//go:build !invariants

package invariants

// Enabled is set by the build tag invariants.
const Enabled = false
