package chat_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/kvindex/kvindex/tokenize/chat"
)

// A long conversation may take more steps than a short one, and more than a request's own template.
func TestStepsGrowWithMessages(t *testing.T) {
	body := func(n int, more string) string {
		return `{"messages":[` + strings.Repeat(`{"role":"user","content":"x"},`, n-1) + `{"role":"user","content":"x"}]` + more + "}"
	}
	const perMessage = `{% for m in messages %}{% for i in range(350) %}{% set x = i %}{% endfor %}{% endfor %}`
	once := func(n int) string {
		return fmt.Sprintf(`{%% for i in range(%d) %%}{%% for j in range(1000) %%}{%% set x = i %%}{%% endfor %%}{%% endfor %%}`, n)
	}
	own := func(template string) string { return `,"chat_template":"` + template + `"` }
	for _, c := range []struct {
		name, template, body string
		fits                 bool
	}{
		{"a long conversation", perMessage, body(2000, ""), true},
		{"a short one", once(700), body(1, ""), false},
		{"a short one, of little work", once(50), body(1, ""), true},
		{"of a request, as long", "x", body(2000, own(perMessage)), false},
		{"of a request, of little work", "x", body(1, own(once(50))), true},
		{"of a request, a long one", "x", body(1, own(strings.Repeat("x", 70_000))), false},
		{"a long one", strings.Repeat("x", 70_000), body(1, ""), true},
	} {
		_, err := newModel(t, c.template, chat.Options{}).Render(parse(t, c.body), nil)
		if c.fits && err != nil || !c.fits && !errors.Is(err, chat.ErrNotScorable) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}
