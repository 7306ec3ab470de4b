package python

import (
	"testing"

	"github.com/kvindex/kvindex/internal/testdata"
)

func TestDefaults(t *testing.T) {
	l := NewMachine(Limits{}).limits
	testdata.Defaults(t,
		testdata.Default{Name: "defaultSteps", Zero: int64(l.Steps), Want: defaultSteps},
		testdata.Default{Name: "defaultDepth", Zero: int64(l.Depth), Want: defaultDepth},
		testdata.Default{Name: "defaultOutput", Zero: int64(l.Output), Want: defaultOutput},
		testdata.Default{Name: "defaultMemory", Zero: int64(l.Memory), Want: defaultMemory},
	)
}
