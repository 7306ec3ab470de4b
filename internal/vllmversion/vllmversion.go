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
	oldest Version = 9_000  // whose source was read
	newest Version = 31_999 // the last release that was out in autumn 2026, with any third number
	Main   Version = math.MaxUint32
)

// String returns the version as a user writes it.
func (v Version) String() string {
	switch {
	case v == Main:
		return "main"
	case v%1000 == 0:
		return fmt.Sprintf("%d.%d", v/1_000_000, v/1000%1000)
	}
	return fmt.Sprintf("%d.%d.%d", v/1_000_000, v/1000%1000, v%1000)
}

// Parse reads a version such as "0.28" or "main"; "" is main. A fourth number changes
// nothing. The rules of a release after newest are not known.
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
	case v < oldest:
		return 0, fmt.Errorf("an Engine of %q is older than 0.9, the first version that is known", s)
	case v > newest:
		return 0, fmt.Errorf(`an Engine of %q is newer than 0.31, the last release that is known: "main" is vLLM's of autumn 2026`, s)
	}
	return v, nil
}
