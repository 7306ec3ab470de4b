// Mutants breaks what the library promises, one line at a time, and checks that
// for each a named test fails. It changes no file: the compiler is shown the
// broken ones through an overlay, those of a package all in one test binary.
//
//	go run ./internal/mutants                        # all
//	go run ./internal/mutants name ...               # those
//	go run ./internal/mutants -base main             # those of what differs from main
//	go run ./internal/mutants -base main -of ./index # and all of the index
//	go run ./internal/mutants -of none               # none
//	go run ./internal/mutants -packages              # lists the packages that have some
//
// Without names every row is checked to name a function, a text in it, and a test.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// promise is what the library promises, with mutants that break it.
type promise struct {
	name string
	rows []mutant
}

// mutant replaces old, which must stand exactly once in what it breaks.
type mutant struct {
	pkg      string // whose test must fail
	breaks   string // a function, method (Type.Method) or variable; of another package: internal/x:Name
	name     string
	old, new string
	test     string
}

func main() {
	of := flag.String("of", "", "`packages`, separated by commas, of which all mutants are tried")
	base := flag.String("base", "", "a `commit`: mutants are tried whose function, test or row differs from it")
	list := flag.Bool("packages", false, "print the packages that have mutants, and try none")
	flag.Parse()
	var changed changes
	all, err := trials()
	if err == nil && *base != "" {
		changed, err = changesSince(".", *base)
	}
	chosen := slices.DeleteFunc(slices.Clone(all), func(t *trial) bool {
		if flag.NArg() > 0 {
			return !slices.Contains(flag.Args(), t.name)
		}
		return flag.NFlag() > 0 && t.err == nil && !slices.Contains(strings.Split(*of, ","), t.pkg) && !changed.concern(t.mutant)
	})
	switch {
	case err == nil && *list:
		fmt.Println(strings.Join(packagesOf(all), "\n"))
	case err == nil && len(chosen) < flag.NArg():
		err = fmt.Errorf("of %q only %d are mutants", flag.Args(), len(chosen))
	case err == nil:
		err = run(chosen, all)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
		os.Exit(1)
	}
}

// trials returns all mutants, each with what it breaks.
func trials() (all []*trial, err error) {
	sources := make(map[string]*pkgSource)
	for _, p := range promises {
		for _, m := range p.rows {
			dir, _ := m.place()
			for _, d := range []string{dir, m.pkg} {
				if sources[d] == nil {
					if sources[d], err = load(d); err != nil {
						return nil, err
					}
				}
			}
			t := &trial{mutant: m, n: len(all) + 1}
			t.err = t.find(sources[dir], sources[m.pkg].tests)
			all = append(all, t)
		}
	}
	return all, nil
}

func packagesOf(trials []*trial) (packages []string) {
	for _, t := range trials {
		packages = append(packages, t.pkg)
	}
	slices.Sort(packages)
	return slices.Compact(packages)
}

// run tries the chosen mutants, two packages at once.
func run(chosen, all []*trial) error {
	dir, err := os.MkdirTemp("", "mutants")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	packages := packagesOf(chosen)
	failed := make([]error, len(packages))
	var next, killed atomic.Int64
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			for i := int(next.Add(1)) - 1; i < len(packages); i = int(next.Add(1)) - 1 {
				pkg, begun := packages[i], time.Now()
				some, there := of(pkg, chosen), of(pkg, all)
				var n int
				n, failed[i] = tryAll(filepath.Join(dir, strconv.Itoa(i)), pkg, some)
				killed.Add(int64(n))
				fmt.Printf("%s: %d of %d mutants killed, there are %d, %.1f s\n", pkg, n, len(some), len(there), time.Since(begun).Seconds())
			}
		})
	}
	wg.Wait()
	fmt.Printf("%d of %d mutants killed, there are %d\n", killed.Load(), len(chosen), len(all))
	return errors.Join(failed...)
}

// of returns those of a package.
func of(pkg string, trials []*trial) []*trial {
	return slices.DeleteFunc(slices.Clone(trials), func(t *trial) bool { return t.pkg != pkg })
}
