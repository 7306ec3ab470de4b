package index_test

import (
	"reflect"
	"testing"

	"github.com/kvindex/kvindex/index"
)

// Add adds every field, new ones too.
func TestCountsAdd(t *testing.T) {
	var sum, more index.Counts
	of := reflect.TypeFor[index.Counts]()
	for i := range of.NumField() {
		if of.Field(i).Type.Kind() != reflect.Uint64 {
			t.Fatalf("%s is no uint64", of.Field(i).Name)
		}
		reflect.ValueOf(&sum).Elem().Field(i).SetUint(uint64(i + 1))
		reflect.ValueOf(&more).Elem().Field(i).SetUint(uint64(100 * (i + 1)))
	}
	sum.Add(more)
	for i := range of.NumField() {
		if got := reflect.ValueOf(sum).Field(i).Uint(); got != uint64(101*(i+1)) {
			t.Errorf("%s is %d", of.Field(i).Name, got)
		}
	}
}
