package figures

import (
	"reflect"
	"slices"
	"testing"

	"github.com/kvindex/kvindex/events"
	"github.com/kvindex/kvindex/stats"
)

// TestEachFigure: each number of stats.Stats is in a series, except numbers that other series contain.
func TestEachFigure(t *testing.T) {
	left := []string{
		"Pods",      // kvindex_pods, by state
		"Malformed", // MalformedBy
	}
	var st stats.Stats
	names := make(map[float64]string)
	number(reflect.ValueOf(&st).Elem(), "", names)
	s := New(0)
	emit := func(_ *Metric, value float64, _ []string) { delete(names, value) }
	s.readScores(&Reading{Stats: st}, emit)
	s.readIndex(&st, emit)
	readMessages(&st, emit)
	s.readPredictions(&st, emit)
	readPrompts(&st.Prompts, emit)
	for _, name := range names {
		if !slices.Contains(left, name) {
			t.Errorf("%s is in no series", name)
		}
	}
	if len(names) != len(left) {
		t.Errorf("%d figures are left out, want %d", len(names), len(left))
	}
}

// TestDropped: each reason for which a Subscriber drops messages has a series.
func TestDropped(t *testing.T) {
	for reason := range new(events.Subscriber).Stats().Dropped {
		if !slices.Contains(drops, reason) {
			t.Errorf("%q is in no series", reason)
		}
	}
}

// TestNil: nil arguments of the Watch methods add no series.
func TestNil(t *testing.T) {
	s := New(0)
	s.Watch(nil)
	s.WatchSubscriber(nil)
	s.WatchFleet(nil)
	s.WatchPool(nil)
	s.WatchTokenizers(nil)
	s.Read(func(m *Metric, value float64, _ []string) { t.Errorf("%s is %v", m.Name, value) })
}

// number sets each integer of v to another value.
func number(v reflect.Value, name string, names map[float64]string) {
	next := float64(1000 + len(names))
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			f := v.Type().Field(i)
			of := name
			if !f.Anonymous {
				of = f.Name
				if name != "" {
					of = name + "." + f.Name
				}
			}
			number(v.Field(i), of, names)
		}
	case reflect.Array:
		for i := range v.Len() {
			number(v.Index(i), name, names)
		}
	case reflect.Map:
		of := reflect.New(v.Type().Elem()).Elem()
		number(of, name, names)
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(reflect.ValueOf("word"), of)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		number(v.Index(0), name, names)
	case reflect.Int, reflect.Int64:
		v.SetInt(int64(next))
		names[next] = name
	case reflect.Uint64:
		v.SetUint(uint64(next))
		names[next] = name
	}
}
