package chat_test

import (
	"errors"
	"fmt"
	"maps"
	"runtime"
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
		{`"prompt":"hi"`, "none"},
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
		if got := parse(t, `{`+c.body+`}`).Features().String(); got != c.want {
			t.Errorf("%s: %s, want %s", c.body, got, c.want)
		}
	}
}

// A request that is kept keeps nothing of what is not looked at.
func TestRequestKeepsNoOtherFields(t *testing.T) {
	body := []byte(`{` + hi + `,"metadata":[` + strings.Repeat(`{},`, 100_000) + `{}]}`)
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	r := parse(t, string(body))
	runtime.GC()
	runtime.ReadMemStats(&after)
	if held := int64(after.HeapAlloc) - int64(before.HeapAlloc); held > 2<<20 { // of objects alone it would be 8 MB
		t.Errorf("a body of %d bytes holds %d", len(body), held)
	}
	runtime.KeepAlive(body)
	runtime.KeepAlive(r)
}

func TestFeaturesText(t *testing.T) {
	for _, f := range []chat.Features{0, chat.FeaturePlain, chat.FeatureTools | chat.FeatureParts, 2*chat.FeatureKwargs - 1} {
		text, err := f.MarshalText()
		var back chat.Features
		if err != nil || back.UnmarshalText(text) != nil || back != f {
			t.Errorf("%s: %s, %v", f, back, err)
		}
	}
	if s := (2*chat.FeatureKwargs - 1).String(); strings.Count(s, ",") != 19 || !strings.HasSuffix(s, ",kwargs") {
		t.Error(s)
	}
	if s := (4 * chat.FeatureKwargs).String(); s != "0x200000" {
		t.Error(s)
	}
	f := chat.FeatureTools
	if err := f.UnmarshalText([]byte("tools,boats")); err == nil || !strings.Contains(err.Error(), `"boats"`) || f != chat.FeatureTools {
		t.Errorf("%v, %s", err, f)
	}
}

// What is excluded for all is an error that names it, and nothing else is.
func TestExclude(t *testing.T) {
	m := newModel(t, "{{ messages[0].content }}", chat.Options{})
	plain, tools := parse(t, `{`+hi+`}`), parse(t, `{`+hi+hiTool+`}`)
	renders := func(r *chat.Request) (pods map[string]chat.Features, err error) {
		x, err := m.Render(r, nil)
		if err != nil {
			return nil, err
		}
		return maps.Collect(x.Excluded()), nil
	}
	is := func(step string, r *chat.Request, want map[string]chat.Features) {
		t.Helper()
		if got, err := renders(r); err != nil || !maps.Equal(got, want) {
			t.Errorf("%s: %v, %v, want %v", step, got, err, want)
		}
	}
	is("nothing", tools, nil)
	m.Exclude("a", chat.FeatureTools|chat.FeatureNames)
	m.Exclude("b", chat.FeatureParts)
	m.Exclude("c", chat.FeaturePlain)
	is("pods", plain, map[string]chat.Features{"c": chat.FeaturePlain})
	is("pods", tools, map[string]chat.Features{"a": chat.FeatureTools, "c": chat.FeaturePlain})
	m.Exclude("", chat.FeatureTools|chat.FeatureDeveloper)
	is("all", plain, map[string]chat.Features{"c": chat.FeaturePlain})
	if _, err := renders(tools); !errors.Is(err, chat.ErrNotScorable) || !strings.Contains(err.Error(), "tools") || strings.Contains(err.Error(), "developer") {
		t.Error(err)
	}
	if x, err := m.RenderAnyway(tools, nil); err != nil || x.Text != "hi" {
		t.Errorf("anyway: %q, %v", text(x), err)
	}
	m.Exclude("", 0)
	x, err := m.Render(tools, nil)
	if err != nil {
		t.Fatal(err)
	}
	m.Exclude("a", chat.FeatureParts) // in the place of tools
	m.Exclude("c", 0)
	if got := maps.Collect(x.Excluded()); len(got) != 2 {
		t.Errorf("what was rendered before: %v", got)
	}
	m.Exclude("never", 0)
	is("taken back", tools, nil)
	m.Exclude("", 1<<31)
	is("no feature", tools, nil)
}

// Pods are kept up to a bound, and what is past it counts for all.
func TestExcludeBound(t *testing.T) {
	const most = 4096
	m := newModel(t, "{{ messages[0].content }}", chat.Options{})
	for i := range most {
		m.Exclude(fmt.Sprint("pod-", i), chat.FeatureTools)
	}
	m.Exclude("pod-0", chat.FeatureParts) // which is there
	m.Exclude("one more", 0)
	x, err := m.Render(parse(t, `{`+hi+hiTool+`}`), nil)
	if err != nil || len(maps.Collect(x.Excluded())) != most-1 {
		t.Fatal(err)
	}
	m.Exclude("one more", chat.FeatureNames)
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
				m.Exclude(pod, chat.FeatureTools)
				x, err := m.Render(r, nil)
				if err != nil || maps.Collect(x.Excluded())[pod] != chat.FeatureTools {
					t.Error(pod, err)
				}
				m.Exclude(pod, 0)
			}
		})
	}
	wg.Wait()
	x, err := m.Render(r, nil)
	if err != nil || len(maps.Collect(x.Excluded())) > 0 {
		t.Error(err)
	}
}
