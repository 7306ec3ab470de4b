package jinja

import (
	"errors"
	"fmt"
	"math/big"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kvindex/kvindex/internal/jinja/python"
	"github.com/kvindex/kvindex/internal/jinja/syntax"
	"github.com/kvindex/kvindex/internal/testdata"
)

// textSize is about how many bytes the texts have that hostile programs work on.
const textSize = 1 << 16

// manyOf returns n copies of s as a list.
func manyOf(v python.Value, n int) *python.List {
	return &python.List{Items: slices.Repeat([]python.Value{v}, n)}
}

// workVars are texts and values that are much work.
func workVars() *python.Dict {
	vars := &python.Dict{}
	for name, s := range map[string]string{
		"a": "a", "accents": "é", "c": "你", "words": "word ", "spaced": "é ", "lines": "a\n", "html": "<&>'", "space": " ",
		"digits": "1", "controls": "\x01", "sigma": "Σ",
		"percents": "%%", "strings": "%s", "braces": "{{", "fields": "{}", "dirs": "%c", "path": "a.",
	} {
		vars.Set(name, strings.Repeat(s, textSize/len(s)))
	}
	vars.Set("r", &python.Range{Stop: 99999, Step: 1})
	vars.Set("big", new(big.Int).Exp(big.NewInt(7), big.NewInt(5000), nil))
	vars.Set("f", 1.5e300)
	vars.Set("g", 1.23456789)
	vars.Set("i", int64(5))
	vars.Set("s", "ab")
	vars.Set("l", &python.List{Items: []python.Value{int64(3), int64(1), int64(2)}})
	vars.Set("ones", manyOf(int64(1), 1<<12))
	vars.Set("short", manyOf("ab", 1<<12))
	vars.Set("texts", manyOf(strings.Repeat("é", 1<<12), 16))
	vars.Set("empty", &python.Tuple{Items: manyOf("", textSize/2).Items})
	d := &python.Dict{}
	for i := range 12 {
		d.Set("k"+strings.Repeat("k", i), "")
	}
	vars.Set("d", d)
	return vars
}

// hostileTexts are expressions that go through a text, and how many steps that takes
// at least for each 256 of its bytes.
var hostileTexts = map[int][]string{
	1: {
		"a == a ~ ''", "a < a ~ ''", "d[a]", "d.get(a)", "a in d", "{a: 1}", "s[a]", "l[a]",
		"a.startswith(a)", "a.endswith(a)", "a.removeprefix(a)", "a.find('b')", "a.count('b')", "'b' in a", "a ~ 'b'", "a + 'b'", "a * 2",
		"a.split('b')", "texts|sort", "texts|join", "'{}'.format(a)",
	},
	4: {"'ab' in a", "(a[:100] ~ 'b') in a", "a.count('ab')", "a.replace('ab', '')"},
	8: {
		"a|length", "accents|length", "accents[::-1]", "accents[30000]", "accents[-30000]", "accents[30000:]", "accents.find('ü')", "accents.rfind('ü')", "a.rfind('ba')",
		"accents.count('')", "a.rsplit('ba')",
		"a|upper", "a|lower", "a|first", "a is iterable", "a|tojson", "[a]|string",
		"lines.splitlines()", "words.split()", "words.rsplit()", "accents.strip('é')", "accents|tojson(ensure_ascii=true)",
	},
	64: {
		"accents|title", "words|title", "accents.title()", "accents.capitalize()", "accents|upper", "accents|lower",
		"sigma.lower()", "digits.isdigit()",
		"space|trim", "a.strip('a')", "s.strip(accents)",
		"[accents]|string", "controls|tojson",

		"a|int", "strings % empty", "braces.format()",
		"l|map(attribute=path, default=0)|list",
	},
}

// takes tells whether rendering takes so many steps.
func takes(t *testing.T, source string, vars *python.Dict, steps int) bool {
	t.Helper()
	compiled, err := Compile(source)
	must(t, err)
	_, err = compiled.Render(nil, vars, &Env{Limits: python.Limits{Steps: steps}})
	return errors.Is(err, ErrLimit)
}

// Going through text is charged by what it takes for each byte.
func TestTextWork(t *testing.T) {
	vars := workVars()
	for each, expressions := range hostileTexts {
		for _, e := range expressions {
			if least := each * textSize / 256; !takes(t, "{% if "+e+" %}{% endif %}", vars, least) {
				t.Errorf("%s takes less than %d steps", e, least)
			}
		}
	}
}

// hostileValues are expressions that take long for how little they are.
var hostileValues = []string{
	"big|string", "big|tojson",

	"l[99]", "d[3]", "s[9]", "s|int", "s|float", "zzz", "s.zzz",
	"l|sort", "l|map('string')|list", "d.values()|sort(attribute=(',' * 99))",
	"s|title", "s|replace('a', 'b')", "'%s%s' % (s, s)", "'{a}'.format(a=s)",
	"ones|sort", "ones|string", "ones|tojson", "ones == ones[:]", "99 in ones", "ones[::2]", "ones + ones",
	"short|map('title')|list", "short|map('int')|list", "short|join(',')",
	"dict(d, k=1)", "d.items()|list", "d|dictsort", "d|tojson", "namespace(a=1)",
}

// hostilePrograms are statements that take long.
func hostilePrograms() map[string]string {
	many := func(format string) string {
		var b strings.Builder
		for i := range 190 {
			fmt.Fprintf(&b, format, i)
		}
		return b.String()
	}
	long := strings.Repeat("a", textSize)
	return map[string]string{
		"nothing":           ``,
		"elif":              `{% if zzz %}` + strings.Repeat(`{% elif zzz %}`, 500) + `{% endif %}`,
		"and":               `{% if ` + strings.Repeat("i and ", 190) + `i %}{% endif %}`,
		"or":                `{{ ` + strings.Repeat("zzz or ", 190) + `'' }}`,
		"not":               `{% if ` + strings.Repeat("not ", 90) + `i %}{% endif %}`,
		"compare":           `{% if i ` + strings.Repeat("== i ", 190) + `%}{% endif %}`,
		"condition":         `{{ ` + strings.Repeat("1 if zzz else ", 90) + `'' }}`,
		"concat":            `{% set x = ` + strings.Repeat("i ~ ", 190) + `'' %}`,
		"undefined":         strings.Repeat(`{{ zzz }}`, 500),
		"constants":         `{% if [` + strings.Repeat("1,", 500) + `i] %}{% endif %}`,
		"dict":              `{% if {` + many(`'a%d': i,`) + `} %}{% endif %}`,
		"call":              `{{ call() }}`,
		"arguments":         `{{ wide(` + many(`a%d=1,`) + `) }}`,
		"defaults":          `{{ wide() }}`,
		"caller":            `{% call call() %}{% endcall %}`,
		"long name":         `{% if d.` + long + ` %}{% endif %}`,
		"long name of list": `{% if l.` + long + ` %}{% endif %}`,
		"long key":          `{% if d['` + long + `'] %}{% endif %}`,
		"long parameter":    `{{ long() }}`,
		"abandoned block":   `{% set x %}{{ a }}{% continue %}{% endset %}`,
		"unpacked":          `{% set ` + many("a%d,") + `z = ones[:191] %}`,
		"unpacked text":     `{% set x, y = 'éü' %}`,
		"items":             `{% for k, v in d.items() %}{% endfor %}`,
		"condition of for":  `{% for k in l if k %}{% endfor %}`,
		"characters":        `{% for k in accents %}{% if k == 'x' %}{% endif %}{% endfor %}`,
		"no characters":     `{% for k in a %}{% if k['x'] == 'x' %}{% endif %}{% endfor %}`,
		"namespace":         `{% set ns.x = {i: 1} %}`,
		"indented":          `{% if ns.deep|tojson(indent=0) %}{% endif %}`,
		"shared":            `{{ ns.shared }}`,
		"shared equal":      `{% if ns.shared == ns.other %}{% endif %}`,
	}
}

// again is a program that does something until a limit.
func again(do string) string {
	params := strings.TrimSuffix(strings.Repeat("a%d,", 190), ",")
	numbers := make([]any, 190)
	for i := range numbers {
		numbers[i] = i
	}
	return `{% macro call() %}{{ caller is none }}{% endmacro %}{% macro wide(` + fmt.Sprintf(params, numbers...) + `) %}{% endmacro %}` +
		`{% macro long(` + strings.Repeat("a", textSize) + `) %}{% endmacro %}` +
		`{% set ns = namespace(deep=1, shared=[], other=[]) %}` +
		`{% for x in range(100) %}{% set ns.deep = [ns.deep] %}{% set ns.shared = [ns.shared, ns.shared] %}{% set ns.other = [ns.other, ns.other] %}{% endfor %}` +
		`{% for x in r %}{% for x in r %}` + do + `{% endfor %}{% endfor %}`
}

func allHostile() map[string]string {
	all := make(map[string]string)
	for name, do := range hostilePrograms() {
		all[name] = again(do)
	}
	expressions := hostileValues
	for _, texts := range hostileTexts {
		expressions = append(expressions[:len(expressions):len(expressions)], texts...)
	}
	for _, e := range expressions {
		all[e] = again("{% if (" + e + ") is none %}{% endif %}")
	}
	return all
}

// Repeated work of a template ends at a limit.
func TestRepeatedWork(t *testing.T) {
	vars := workVars()
	for name, source := range allHostile() {
		compiled, err := Compile(source)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if _, err := compiled.Render(nil, vars, &Env{Limits: python.Limits{Steps: 1 << 16}}); !errors.Is(err, ErrLimit) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// longConversation has n messages of size bytes each, in parts if the template wants
// parts.
func longConversation(t *Template, n, size int) *python.Dict {
	text := strings.Repeat("Why, the <think> of Zürich & a walk; it's \"late\".\n\nSo: 你好, tell me. ", size/70+1)[:size]
	content := python.Value(strings.ToValidUTF8(text, ""))
	if t.WantsParts(syntax.LoopsOverParameters) {
		part := dictOf("type", "text")
		part.Set("text", content)
		content = &python.List{Items: []python.Value{part}}
	}
	messages := &python.List{}
	for i := range n {
		m := dictOf("role", []string{"user", "assistant"}[i%2])
		m.Set("content", content)
		messages.Items = append(messages.Items, m)
	}
	vars := conversation(0)
	vars.Set("messages", messages)
	return vars
}

// manyTools are tools of 400 kB as JSON.
func manyTools() python.Value {
	properties := &python.Dict{}
	for i := range 8 {
		p := dictOf("type", "string")
		p.Set("description", `The <name> of a city in Zürich, or so: it's "one" of them all`)
		properties.Set(fmt.Sprint("name", i), p)
	}
	parameters := dictOf("type", "object")
	parameters.Set("properties", properties)
	parameters.Set("required", &python.List{Items: []python.Value{"name1", "name2"}})
	tools := &python.List{}
	for i := range 400 {
		f := dictOf("name", fmt.Sprint("get_weather", i))
		f.Set("description", "Get the weather")
		f.Set("parameters", parameters)
		tool := dictOf("type", "function")
		tool.Set("function", f)
		tools.Items = append(tools.Items, tool)
	}
	return tools
}

// fewMessages are templates that for each message go back through those before it,
// which no limit can be meant to bear of thousands.
var fewMessages = map[string]bool{"gemma4": true}

// Long conversations that are no attack stay within the limits.
func TestLongConversations(t *testing.T) {
	dir := testdata.Path(t, "chat templates", "templates")
	files, err := filepath.Glob(filepath.Join(dir, "*.jinja"))
	must(t, err)
	rendered := 0
	for i, file := range files {
		if !longRun() && i%4 > 0 || testing.Short() && i%16 > 0 {
			continue
		}
		name := strings.TrimSuffix(filepath.Base(file), ".jinja")
		source, err := os.ReadFile(file)
		must(t, err)
		template, err := Compile(string(source))
		if err != nil {
			t.Fatal(name, err)
		}
		for _, c := range []struct{ messages, size int }{{2000, 2000}, {5000, 200}, {1, 8 << 20}, {3, 2 << 20}, {1, 100}} {
			if fewMessages[name] {
				c.messages = min(c.messages, 500)
			}
			vars := longConversation(template, c.messages, c.size)
			if c.size == 100 {
				vars.Set("tools", manyTools())
			}
			_, err := template.Render(nil, vars, nil)
			if errors.Is(err, ErrLimit) {
				t.Errorf("%s with %d messages of %d bytes: %v", name, c.messages, c.size, err)
			}
			if err == nil {
				rendered++
			}
		}
	}
	t.Logf("%d rendered, of %d templates", rendered, len(files))
}

func dictOf(key string, v python.Value) *python.Dict {
	d := &python.Dict{}
	d.Set(key, v)
	return d
}
