// Package vllmversion reads versions of vLLM as a user writes them.
package vllmversion

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// A Version is one of vLLM's: 1,000,000 times its first number, 1,000 times its
// second, and its third.
type Version uint32

const (
	Oldest Version = 9_000 // whose source was read
	Main   Version = math.MaxUint32
)

// Parse reads a version such as "0.28" or "main"; "" is main. A fourth number changes
// nothing.
func Parse(s string) (Version, error) {
	switch s {
	case "", "main":
		return Main, nil
	}
	numbers := strings.Split(s, ".")
	ok := 2 <= len(numbers) && len(numbers) <= 4
	var v Version
	for i, scale := 0, Version(1_000_000); ok && i < len(numbers); i, scale = i+1, scale/1000 {
		n, err := strconv.ParseUint(numbers[i], 10, 64)
		ok = err == nil && n <= 999
		v += Version(n) * scale
	}
	switch {
	case !ok:
		return 0, fmt.Errorf(`an Engine of %.60q is no version of vLLM, such as "0.28" or "main"`, s)
	case v < Oldest:
		return 0, fmt.Errorf("an Engine of %q is older than 0.9, the first version that is known", s)
	}
	return v, nil
}
