package tokenize_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/kvindex/kvindex/tokenize"
)

func TestPostProcessors(t *testing.T) {
	const (
		around   = `"cls":["<s>",1],"sep":["</s>",2]`
		roberta  = `{"type":"RobertaProcessing",` + around + `,"trim_offsets":true,"add_prefix_space":false}`
		level    = `{"type":"ByteLevel","add_prefix_space":true,"trim_offsets":false,"use_regex":true}`
		tokens   = `"special_tokens":{"b":{"id":"b","ids":[5,6],"tokens":["b","c"]},"e":{"id":"e","ids":[7],"tokens":["e"]}}`
		text     = `{"Sequence":{"id":"A","type_id":0}}`
		template = `{"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"b","type_id":0}},` + text +
			`,{"SpecialToken":{"id":"e","type_id":1}},{"SpecialToken":{"id":"b","type_id":1}}],"pair":[],` + tokens + `}`
	)
	with := func(section, field string) string { return strings.TrimSuffix(section, "}") + "," + field + "}" }
	sequence := func(items ...string) string {
		return `{"type":"Sequence","processors":[` + strings.Join(items, ",") + `]}`
	}
	ones, inTemplate := [2][]uint32{{1}, {2}}, [2][]uint32{{5, 6}, {7, 5, 6}}
	for _, c := range []struct {
		section string
		want    [2][]uint32
	}{
		{"null", [2][]uint32{}},
		{level, [2][]uint32{}},
		{roberta, ones},
		{`{"type":"BertProcessing",` + around + `}`, ones},
		{template, inTemplate},
		{with(template, `"add_prefix_space":true,"trim_offsets":false,"use_regex":true`), inTemplate},
		{`{"type":"TemplateProcessing","single":[` + text + `],"pair":[],` + tokens + `}`, [2][]uint32{}},
		{sequence(), [2][]uint32{}},
		{sequence(level, template), inTemplate},
		{sequence(template, level), inTemplate},
		{sequence(level, roberta), ones},
	} {
		before, after, err := tokenize.PostProcessor(c.section)
		if err != nil || !slices.Equal(before, c.want[0]) || !slices.Equal(after, c.want[1]) {
			t.Errorf("%s: got %v, %v, %v, want %v", c.section, before, after, err, c.want)
		}
	}

	unsupported, malformed := tokenize.ErrUnsupported, tokenize.ErrMalformed
	for _, c := range []struct {
		section string
		kind    error
		want    string
	}{
		{`{"type":"Other"}`, unsupported, `"Other"`},
		{with(template, `"cls":["<s>",1]`), unsupported, `field "cls"`},
		{with(roberta, `"x":1`), unsupported, `RobertaProcessing field "x"`},
		{`{"type":"BertProcessing",` + around + `,"trim_offsets":true}`, unsupported, `BertProcessing field "trim_offsets"`},
		{`{"type":"BertProcessing","cls":["<s>",1]}`, malformed, `"sep"`},
		{`{"type":"BertProcessing","sep":["<s>",1]}`, malformed, `"cls"`},
		{`{"type":"RobertaProcessing",` + around + `,"trim_offsets":true}`, malformed, `"add_prefix_space"`},
		{`{"type":"RobertaProcessing",` + around + `,"add_prefix_space":true,"trim_offsets":1}`, malformed, `"trim_offsets"`},
		{sequence(template, roberta), unsupported, "second RobertaProcessing"},
		{sequence(roberta, template), unsupported, "second TemplateProcessing"},
	} {
		_, _, err := tokenize.PostProcessor(c.section)
		if !errors.Is(err, c.kind) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q and %v", c.section, err, c.want, c.kind)
		}
	}
	for _, token := range []string{`1`, `[]`, `["<s>"]`, `["<s>",1,2]`, `[1,"<s>"]`, `["<s>",-1]`, `["<s>",1.5]`, `["<s>","1"]`, `["<s>",99999999999]`, `null`} {
		_, _, err := tokenize.PostProcessor(`{"type":"BertProcessing","sep":["</s>",2],"cls":` + token + `}`)
		if !errors.Is(err, malformed) || !strings.Contains(err.Error(), `"cls"`) {
			t.Errorf("cls %s: got %v", token, err)
		}
	}
}
