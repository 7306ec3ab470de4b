package explain

import (
	"os"
	"strings"
	"testing"
)

// TestCauses: the doc comment of kvindex.Explanation lists all causes in order.
func TestCauses(t *testing.T) {
	source, err := os.ReadFile("../../explain.go")
	if err != nil {
		t.Fatal(err)
	}
	rest := string(source)
	for _, name := range causeNames[1:] {
		_, after, ok := strings.Cut(rest, "\t//\t"+name+"  ")
		if !ok {
			t.Fatalf("%q is not in the list, or not in its place", name)
		}
		rest = after
	}
	if _, _, more := strings.Cut(rest[:strings.Index(rest, "\tCause string\n")], "\t//\t"); more {
		t.Errorf("the list has more causes than %q", causeNames)
	}
}
