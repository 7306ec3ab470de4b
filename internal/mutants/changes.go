package main

import (
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/kvindex/kvindex/internal/decls"
)

// changes has what differs from a commit: declarations, as folder and name, and
// rows of this tool.
type changes struct {
	decls map[[2]string]bool
	rows  []string
}

// concern reports whether the function, the test or the row of a mutant differs.
func (c changes) concern(m mutant) bool {
	dir, name := m.place()
	return c.decls[[2]string{filepath.Clean(dir), name}] || c.decls[[2]string{filepath.Clean(m.pkg), m.function()}] ||
		slices.ContainsFunc(c.rows, func(row string) bool { return strings.Contains(row, strconv.Quote(m.name)) })
}

// changesSince compares what stands in a folder, the top of a repository, with a
// commit of it.
func changesSince(top, ref string) (c changes, err error) {
	c.decls = make(map[[2]string]bool)
	diff, err := git(top, "diff", "-U0", "--no-color", "--no-ext-diff", "--no-renames", "--dst-prefix=b/", ref, "--", "*.go")
	if err != nil {
		return c, err
	}
	file := ""
	for line := range strings.Lines(diff) {
		if name, ok := strings.CutPrefix(line, "+++ "); ok {
			file = strings.TrimPrefix(strings.TrimSpace(name), "b/") // or /dev/null
		}
		hunk := strings.Fields(line)
		if len(hunk) < 3 || hunk[0] != "@@" || file == "/dev/null" {
			continue
		}
		first, lines := 0, 1
		if n, err := fmt.Sscanf(hunk[2], "+%d,%d", &first, &lines); n == 0 {
			return c, fmt.Errorf("hunk %q: %w", line, err)
		}
		if err := c.add(top, file, first, lines); err != nil {
			return c, err
		}
	}
	others, err := git(top, "ls-files", "--others", "--exclude-standard", "--", "*.go")
	for file := range strings.Lines(others) {
		if err := c.add(top, strings.TrimSpace(file), 1, math.MaxInt32); err != nil {
			return c, err
		}
	}
	return c, err
}

// add notes what has some of the lines of a file in it. With none of them, it is
// what goes on behind line first: there some were deleted.
func (c *changes) add(top, file string, first, lines int) error {
	s, err := parse(filepath.Join(top, file))
	if err != nil {
		return err
	}
	dir := filepath.Dir(file)
	for _, d := range s.Decls {
		from, to := fset.Position(d.Pos()).Line, fset.Position(d.End()).Line
		if lines == 0 && (from > first || to <= first) || lines > 0 && (from >= first+lines || to < first) {
			continue
		}
		for _, name := range decls.Names(d) {
			c.decls[[2]string{dir, name}] = true
		}
	}
	if dir == "internal/mutants" && lines > 0 {
		all := strings.Split(s.src, "\n")
		c.rows = append(c.rows, all[first-1:min(first-1+lines, len(all))]...)
	}
	return nil
}

func git(top string, args ...string) (string, error) {
	cmd := exec.Command("git", args...)
	cmd.Dir, cmd.Stderr = top, os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s: %w", cmd, err)
	}
	return string(out), nil
}
