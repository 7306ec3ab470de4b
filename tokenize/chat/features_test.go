package chat_test

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/kvindex/kvindex/tokenize/chat"
)

const (
	hiTool   = `,"tools":[{"type":"function","function":{"name":"f","description":"d","parameters":{}}}]`
	hiCalled = `"messages":[{"role":"user","content":"hi"},{"role":"assistant","tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":%s}}]}]`
)

func TestFeatures(t *testing.T) {
	for _, c := range []struct{ body, want string }{
		{hi, "plain"},
		{`"prompt":"hi"`, ""},
		{hi + `,"temperature":0.5,"add_generation_prompt":true,"tools":null,"documents":null,"chat_template_kwargs":null`, "plain"},
		{hi + `,"add_generation_prompt":false`, "plain,no_generation_prompt"},
		{hi + `,"add_generation_prompt":false,"continue_final_message":true`, "plain,no_generation_prompt,continue_final"},
		{hi + `,"documents":[]`, "plain,documents"},
		{hi + `,"chat_template_kwargs":{"documents":[]}`, "plain,documents"},
		{hi + `,"chat_template_kwargs":{"documents":[],"x":1}`, "plain,documents,kwargs"},
		{hi + `,"chat_template_kwargs":{"tools":[{"function":{"name":"f"},"x":1}]}`, "plain,tools,tool_fields"},
		{hi + `,"reasoning_effort":"low"`, "plain,kwargs"},
		{hi + hiTool, "plain,tools"},
		{hi + strings.Replace(hiTool, `"d"`, `"d","strict":true`, 1), "plain,tools,tool_fields"},
		{hi + strings.Replace(hiTool, `{"type"`, `{"x":1,"type"`, 1), "plain,tools,tool_fields"},
		{`"messages":[{"role":"system","content":"hi"}]`, "plain,system"},
		{`"messages":[{"role":"system","content":"x-anthropic-billing-header: a\nhi"}]`, "plain,system,billing_header"},
		{`"messages":[{"role":"system","content":[{"type":"text","text":"x-anthropic-billing-header: a\nhi"}]}]`, "plain,system,billing_header,parts"},
		{`"messages":[{"role":"user","content":"x-anthropic-billing-header: a\nhi"}]`, "plain"},
		{`"messages":[{"role":"developer","content":"hi"}]`, "plain,developer"},
		{`"messages":[{"role":"user","content":"hi","name":"ann"}]`, "plain,names"},
		{`"messages":[{"role":"assistant","content":"hi"}]`, "plain,turns"},
		{`"messages":[{"role":"assistant","content":"hi","tool_calls":[]}]`, "plain,turns,empty_calls"},
		{`"messages":[{"role":"assistant","content":"hi","reasoning":"x"}]`, "plain,turns,reasoning"},
		{`"messages":[{"role":"assistant","content":"hi","reasoning_content":"x"}]`, "plain,turns,reasoning"},
		{`"messages":[{"role":"user","content":"hi","reasoning":"x"}]`, "plain"},
		{`"messages":[{"role":"tool","tool_call_id":"1","content":"hi"}]`, "plain,turns,tool_calls"},
		{fmt.Sprintf(hiCalled, `"{}"`), "plain,turns,tool_calls"},
		{fmt.Sprintf(hiCalled, `" {\"a\": 1} "`), "plain,turns,tool_calls"},
		{fmt.Sprintf(hiCalled, `"null"`), "plain,turns,tool_calls,arguments"},
		{fmt.Sprintf(hiCalled, `"[]"`), "plain,turns,tool_calls,arguments"},
		{fmt.Sprintf(hiCalled, `""`), "plain,turns,tool_calls,arguments"},
		{fmt.Sprintf(hiCalled, `"{"`), "plain,turns,tool_calls,arguments"},
		{`"messages":[{"role":"user","content":[]}]`, "plain,parts"},
		{`"messages":[{"role":"user","content":[{"type":"text","text":"hi"},{"type":"refusal","refusal":"no"}]}]`, "plain,parts"},
		{`"messages":[{"role":"user","content":[{"type":"text","text":"hi","cache_control":null}]}]`, "plain,parts,part_fields"},
		{`"messages":[{"role":"user","content":[{"type":"text","text":""}]}]`, "plain,parts,empty_parts"},
		{`"messages":[{"role":"user","content":[{"type":"text"}]}]`, "plain,parts,empty_parts"},
		{`"messages":[{"role":"user","content":[{"type":"text","x":1}]}]`, "plain,parts,part_fields,empty_parts"},
		{`"messages":[{"role":"user","content":["hi"]}]`, "plain,parts,string_parts"},
		{`"messages":[{"role":"system","content":["x-anthropic-billing-header: a\nhi"]}]`, "plain,system,billing_header,parts,string_parts"},
		{`"messages":[{"role":"tool","tool_call_id":"1","content":"hi","name":5}]`, "plain,turns,tool_calls"},
		{`"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"x"}}]}]`, "plain,parts"},
	} {
		if got := chat.Features(parse(t, `{`+c.body+`}`)); got != c.want {
			t.Errorf("%s: %s, want %s", c.body, got, c.want)
		}
	}
}

// A kept request keeps none of its unused fields.
func TestPromptKeepsNoOtherFields(t *testing.T) {
	body := []byte(`{` + hi + `,"metadata":[` + strings.Repeat(`{},`, 100_000) + `{}]}`)
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	r := parse(t, string(body))
	runtime.GC()
	runtime.ReadMemStats(&after)
	if held := int64(after.HeapAlloc) - int64(before.HeapAlloc); held > 2<<20 { // 8 MB for the objects alone
		t.Errorf("a body of %d bytes holds %d", len(body), held)
	}
	runtime.KeepAlive(body)
	runtime.KeepAlive(r)
}

// The comment of Exclude lists exactly the features.
func TestFeaturesAreDocumented(t *testing.T) {
	f, err := parser.ParseFile(token.NewFileSet(), "features.go", nil, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	var listed []string
	for _, d := range f.Decls {
		if d, ok := d.(*ast.FuncDecl); ok && d.Name.Name == "Exclude" {
			for _, row := range regexp.MustCompile(`(?m)^\t(\w+) .*`).FindAllStringSubmatch(d.Doc.Text(), -1) {
				listed = append(listed, row[1])
				if _, implied, ok := strings.Cut(row[0], "implies "); ok && !slices.Contains(listed, implied) {
					t.Errorf("%s implies what is not listed before it", row[0])
				}
			}
		}
	}
	if !slices.Equal(listed, chat.AllFeatures) {
		t.Errorf("listed are %v, there are %v", listed, chat.AllFeatures)
	}
}

func TestFeatureNames(t *testing.T) {
	m, tools := newModel(t, "{{ messages[0].content }}", chat.Options{}), parse(t, `{`+hi+hiTool+`}`)
	excluded := func() string {
		x, err := m.Render(tools, nil)
		if err != nil {
			t.Fatal(err)
		}
		return x.ExcludedFor("a")
	}
	for i, name := range chat.AllFeatures {
		if set, err := chat.FeaturesOf([]string{name}); set != 1<<i || err != nil {
			t.Errorf("%s: %v, %v", name, set, err)
		}
	}
	if set, err := chat.FeaturesOf(chat.AllFeatures); err != nil || set.String() != strings.Join(chat.AllFeatures, ",") {
		t.Errorf("%s, %v", set, err)
	}
	m.Exclude("a", chat.AllFeatures...)
	if got := excluded(); got != "plain,tools" {
		t.Error(got)
	}
	m.Exclude("a", "tools")
	if err := m.Exclude("a", "plain", "boats"); err == nil || !strings.Contains(err.Error(), `"boats"`) || excluded() != "tools" {
		t.Errorf("%v, and %s is excluded", err, excluded())
	}
	m.Exclude("b", "plain", "tools")
	m.Exclude("c", "documents")
	x, err := m.Render(tools, nil)
	if allocs := testing.AllocsPerRun(100, func() {
		n := 0
		for pod := range x.Excluded() {
			if n++; pod != "a" && pod != "b" {
				t.Error(pod)
			}
		}
		if n != 2 {
			t.Error(n)
		}
	}); err != nil || allocs > 0 {
		t.Errorf("%v allocations, %v", allocs, err)
	}
}

// excludedBy has the excluded features of each pod.
func excludedBy(x *chat.Rendering) map[string]string {
	pods := make(map[string]string)
	for pod := range x.Excluded() {
		pods[pod] = x.ExcludedFor(pod)
	}
	return pods
}

// A feature excluded for all pods is an error with its name. No other feature is one.
func TestExclude(t *testing.T) {
	m := newModel(t, "{{ messages[0].content }}", chat.Options{})
	plain, tools := parse(t, `{`+hi+`}`), parse(t, `{`+hi+hiTool+`}`)
	renders := func(r *chat.Prompt) (pods map[string]string, err error) {
		x, err := m.Render(r, nil)
		if err != nil {
			return nil, err
		}
		return excludedBy(x), nil
	}
	is := func(step string, r *chat.Prompt, want map[string]string) {
		t.Helper()
		if got, err := renders(r); err != nil || !maps.Equal(got, want) {
			t.Errorf("%s: %v, %v, want %v", step, got, err, want)
		}
	}
	is("nothing", tools, nil)
	m.Exclude("a", "tools", "names")
	m.Exclude("b", "parts")
	m.Exclude("c", "plain")
	is("pods", plain, map[string]string{"c": "plain"})
	is("pods", tools, map[string]string{"a": "tools", "c": "plain"})
	m.Exclude("", "tools", "developer")
	is("all", plain, map[string]string{"c": "plain"})
	if _, err := renders(tools); !errors.Is(err, chat.ErrNotScorable) || !strings.Contains(err.Error(), "tools") || strings.Contains(err.Error(), "developer") {
		t.Error(err)
	}
	if x, err := m.RenderAnyway(tools, nil); err != nil || x.Text != "hi" {
		t.Errorf("anyway: %q, %v", text(x), err)
	}
	m.Exclude("")
	x, err := m.Render(tools, nil)
	if err != nil {
		t.Fatal(err)
	}
	m.Exclude("a", "parts") // replaces tools
	m.Exclude("c")
	if got := excludedBy(x); len(got) != 2 {
		t.Errorf("what was rendered before: %v", got)
	}
	m.Exclude("never")
	is("taken back", tools, nil)
	m.Exclude("", "no feature")
	is("no feature", tools, nil)
}

// Pods are kept up to a bound. Further ones count for all pods.
func TestExcludeBound(t *testing.T) {
	const most = 4096
	m := newModel(t, "{{ messages[0].content }}", chat.Options{})
	for i := range most {
		m.Exclude(fmt.Sprint("pod-", i), "tools")
	}
	m.Exclude("pod-0", "parts") // an existing pod
	m.Exclude("one more")
	x, err := m.Render(parse(t, `{`+hi+hiTool+`}`), nil)
	if err != nil || len(excludedBy(x)) != most-1 {
		t.Fatal(err)
	}
	m.Exclude("one more", "names")
	if _, err := m.Render(parse(t, `{"messages":[{"role":"user","content":"hi","name":"ann"}]}`), nil); !errors.Is(err, chat.ErrNotScorable) {
		t.Error(err)
	}
	if _, err := m.Render(parse(t, `{`+hi+hiTool+`}`), nil); err != nil {
		t.Error(err)
	}
}

func TestExcludeConcurrently(t *testing.T) {
	m := newModel(t, "{{ messages[0].content }}", chat.Options{})
	r := parse(t, `{`+hi+hiTool+`}`)
	var wg sync.WaitGroup
	for i := range 8 {
		pod := fmt.Sprint("pod-", i)
		wg.Go(func() {
			for range 100 {
				m.Exclude(pod, "tools")
				x, err := m.Render(r, nil)
				if err != nil || excludedBy(x)[pod] != "tools" {
					t.Error(pod, err)
				}
				m.Exclude(pod)
			}
		})
	}
	wg.Wait()
	x, err := m.Render(r, nil)
	if err != nil || len(excludedBy(x)) > 0 {
		t.Error(err)
	}
}
