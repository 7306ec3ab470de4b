package python

import (
	"testing"

	"github.com/kvindex/kvindex/internal/testdata"
)

func TestDefaults(t *testing.T) {
	l := NewMachine(Limits{}).limits
	testdata.Defaults(t,
		testdata.Default{Name: "DefaultSteps", Zero: int64(l.Steps), Want: DefaultSteps},
		testdata.Default{Name: "DefaultDepth", Zero: int64(l.Depth), Want: DefaultDepth},
		testdata.Default{Name: "DefaultOutput", Zero: int64(l.Output), Want: DefaultOutput},
		testdata.Default{Name: "DefaultMemory", Zero: int64(l.Memory), Want: DefaultMemory},
	)
}
