package jinja

import "testing"

func BenchmarkTojson(b *testing.B) {
	schema := &Dict{}
	properties := &Dict{}
	for _, name := range []string{"location", "unit", "days", "language"} {
		p := &Dict{}
		p.Set("type", "string")
		p.Set("description", "The city and state, e.g. San Francisco, CA — or \"any\"")
		p.Set("enum", &List{Items: []Value{"celsius", "fahrenheit", nil, int64(3), 0.5}})
		properties.Set(name, p)
	}
	schema.Set("type", "object")
	schema.Set("properties", properties)
	schema.Set("required", &List{Items: []Value{"location"}})
	for _, c := range []struct {
		name string
		args arguments
	}{{"line", arguments{}}, {"indent=4", arguments{named: []argument{{"indent", int64(4)}}}}} {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				m := newMachine(&Env{}, nil)
				v, err := tojsonFilter(m, schema, c.args)
				if err != nil {
					b.Fatal(err)
				}
				b.SetBytes(int64(len(v.(string))))
			}
		})
	}
}

func BenchmarkFilter(b *testing.B) {
	text := "  a message of some words\n"
	for _, c := range []struct {
		name string
		args []Value
	}{{"trim", nil}, {"length", nil}, {"upper", nil}, {"default", []Value{"x"}}, {"replace", []Value{"some", "few"}}} {
		f := filters[c.name]
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				m := machine{work: 1 << 20, memory: 1 << 20}
				if _, err := f(&m, text, arguments{list: c.args}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
