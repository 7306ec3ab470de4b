// System messages among the messages of Anthropic's API. Agents send one at nearly every turn.
// vLLM refused them, then moved them into the system prompt, then kept them in place if a
// probe of the template allowed it; autumn 2026's keeps them or joins them to the messages
// beside them (entrypoints/anthropic/inline_system.py at a8c3bdb20).

package chat

import (
	"errors"
	"slices"
	"strings"
	"sync"

	"github.com/kvindex/kvindex/internal/jinja/python"
)

// billed reports whether the engine drops a text of a system message for its header.
func billed(text string) bool { return strings.HasPrefix(text, billingHeader) }

// systemText returns the text of a system message, or of a system prompt, whose text is not
// looked at if it is no list.
func (t *turn) systemText(prompt bool) string {
	if t.plain {
		if !prompt && billed(t.text) {
			return ""
		}
		return t.text
	}
	var b strings.Builder
	for i := range t.blocks {
		if p := &t.blocks[i]; p.kind == "text" && !billed(p.text) {
			b.WriteString(p.text)
		}
	}
	return b.String()
}

// place adds the system prompt to c, and returns the turns behind it.
func (b *messagesBody) place(m *Model, c *conversation) ([]turn, error) {
	prompt, turns := b.system.systemText(true), b.turns
	c.messages = make([]message, 0, len(turns)+len(turns)/2+1) // tool results are messages of their own
	switch {
	case !b.inline:
	case m.engine.does(placesSystem):
		keep, err := m.keepsInline()
		if err != nil {
			return nil, within(err, "messages")
		}
		var leading string
		leading, turns = placeSystem(turns, keep, prompt != "")
		prompt = joinTexts(prompt, leading)
	default:
		keep, err := m.passesOldProbe()
		if err != nil {
			return nil, within(err, "messages")
		}
		if keep {
			turns = withSystemTexts(turns)
			break
		}
		for i := range turns {
			if turns[i].role == "system" {
				prompt += turns[i].systemText(!m.engine.does(probesSystem))
			}
		}
		turns = slices.DeleteFunc(slices.Clone(turns), func(t turn) bool { return t.role == "system" })
	}
	if prompt != "" || b.keepsEmptyPrompt(m.engine) {
		c.add(message{role: "system", content: []part{{text: prompt}}, features: featureSystem})
	}
	if m.engine.does(placesSystem) {
		turns = withSystemTexts(turns)
	}
	return turns, nil
}

// keepsEmptyPrompt reports whether a system prompt without text is a message: of blocks once,
// and where system messages that are texts are moved into it.
func (b *messagesBody) keepsEmptyPrompt(engine version) bool {
	if !engine.does(takesInlineSystem) {
		return len(b.system.blocks) > 0
	}
	return !engine.does(probesSystem) && slices.ContainsFunc(b.turns, func(t turn) bool { return t.role == "system" && t.plain })
}

// withSystemTexts returns the turns with system messages as texts, without those that have
// none.
func withSystemTexts(turns []turn) []turn {
	if !slices.ContainsFunc(turns, func(t turn) bool { return t.role == "system" }) {
		return turns
	}
	list := make([]turn, 0, len(turns))
	for _, t := range turns {
		if t.role == "system" {
			t = turn{role: "system", plain: true, text: t.systemText(false)}
			if t.text == "" {
				continue
			}
		}
		list = append(list, t)
	}
	return list
}

// joinTexts joins texts that are not empty by an empty line.
func joinTexts(texts ...string) string {
	return strings.Join(slices.DeleteFunc(texts, func(s string) bool { return s == "" }), "\n\n")
}

// placeSystem returns the text of the system messages before all others, and the other turns:
// system messages stay in place if keep is set and there is a system prompt, else their texts
// join other turns.
func placeSystem(turns []turn, keep, prompt bool) (leading string, rest []turn) {
	n := 0
	for n < len(turns) && turns[n].role == "system" {
		leading = joinTexts(leading, turns[n].systemText(false))
		n++
	}
	rest = behindResults(turns[n:])
	if keep && (prompt || leading != "") {
		return leading, rest
	}
	return leading, foldSystem(rest)
}

// behindResults moves system messages between calls and their results behind these.
func behindResults(turns []turn) []turn {
	list := make([]turn, 0, len(turns))
	var held []turn
	waits := false
	for _, t := range turns {
		if t.role == "system" {
			if waits {
				held = append(held, t)
			} else {
				list = append(list, t)
			}
			continue
		}
		if t.role == "assistant" {
			list, held = append(list, held...), nil
		}
		list = append(list, t)
		if t.role == "user" {
			list, held = append(list, held...), nil
		}
		waits = t.role == "assistant" && slices.ContainsFunc(t.blocks, func(b block) bool { return b.kind == "tool_use" })
	}
	return append(list, held...)
}

// foldSystem adds the texts of system messages to the user's message before them, to the next
// one, or as one of the user.
func foldSystem(turns []turn) []turn {
	list := make([]turn, 0, len(turns))
	pending := ""
	for _, t := range turns {
		if t.role == "system" {
			switch text := t.systemText(false); {
			case text == "":
			case len(list) > 0 && list[len(list)-1].role == "user" && pending == "":
				list[len(list)-1] = list[len(list)-1].followedBy(text)
			default:
				pending = joinTexts(pending, text)
			}
			continue
		}
		if pending != "" {
			if t.role == "user" {
				t = t.after(pending)
			} else {
				list = append(list, turn{role: "user", plain: true, text: pending})
			}
			pending = ""
		}
		list = append(list, t)
	}
	if pending != "" {
		list = append(list, turn{role: "user", plain: true, text: pending})
	}
	return list
}

// after returns the turn with a text before it.
func (t turn) after(text string) turn {
	switch {
	case t.plain:
		t.text = joinTexts(text, t.text)
	case len(t.blocks) > 0 && t.blocks[0].kind == "text":
		t.blocks = slices.Clone(t.blocks)
		t.blocks[0].text = joinTexts(text, t.blocks[0].text)
	default:
		t.blocks = slices.Insert(slices.Clone(t.blocks), 0, block{kind: "text", text: text})
	}
	return t
}

// followedBy returns the turn with a text behind its own text, or behind its last tool result
// if it has nothing else. Tool results then go first.
func (t turn) followedBy(text string) turn {
	if t.plain {
		t.text = joinTexts(t.text, text)
		return t
	}
	var results, own []block
	for _, b := range t.blocks {
		if b.kind == "tool_result" {
			results = append(results, b)
		} else {
			own = append(own, b)
		}
	}
	switch n := len(own); {
	case n == 0 && len(results) > 0:
		last := &results[len(results)-1]
		last.content = addText(last.content, text)
	case n > 0 && own[n-1].kind == "text":
		own[n-1].text = joinTexts(own[n-1].text, text)
	default:
		own = append(own, block{kind: "text", text: text})
	}
	t.blocks = append(results, own...)
	return t
}

// addText adds a text to the content of a tool result.
func addText(content python.Value, text string) python.Value {
	list, ok := content.(*python.List)
	if !ok {
		s, _ := content.(string)
		return joinTexts(s, text)
	}
	items := slices.Clone(list.Items)
	added := new(python.Dict)
	if n := len(items); n > 0 && optional(items[n-1].(*python.Dict), "type") == "text" {
		last := items[n-1].(*python.Dict)
		s, _ := optional(last, "text").(string)
		added.Set("type", "text")
		added.Set("text", joinTexts(s, text))
		items[n-1] = added
		return &python.List{Items: items}
	}
	added.Set("type", "text")
	added.Set("text", text)
	return &python.List{Items: append(items, added)}
}

// A probe has what a model's template was found to do, once it is needed.
type probe struct {
	old    sync.Once
	passes bool
	failed error

	inline  sync.Once
	keeps   bool
	unknown error // whether it keeps them

	effort   sync.Once
	disabled string
	refusal  error
}

// passesOldProbe reports whether Options.Template renders a system message behind the first
// message, in Jinja2's own environment. The engine does not look at the model's own template
// (vLLM 0.24, entrypoints/anthropic/serving.py, _detect_merge_inline_system).
func (m *Model) passesOldProbe() (bool, error) {
	if m.given == nil || !m.engine.does(probesSystem) {
		return false, nil
	}
	p := &m.probe
	p.old.Do(func() {
		list := new(python.List)
		for _, role := range []string{"system", "user", "system", "user"} {
			d := new(python.Dict)
			d.Set("role", role)
			d.Set("content", "t")
			list.Items = append(list.Items, d)
		}
		vars := new(python.Dict)
		vars.Set("messages", list)
		vars.Set("add_generation_prompt", false)
		for _, name := range []string{"raise_exception", "strftime_now"} {
			vars.Set(name, &python.Undefined{Name: name, Message: "'" + name + "' is undefined"})
		}
		_, err := m.run(m.given, vars, m.given.limits(nil))
		p.passes = err == nil && !strings.Contains(m.options.Template, "endgeneration")
		p.failed = unknownOnly(err)
	})
	return p.passes, p.failed
}

// disabledEffort is the effort that stands for thinking that is disabled: "none", or "low" if
// the template refuses that or makes nothing else of it (main of autumn 2026,
// entrypoints/anthropic/serving.py, _probe_disabled_thinking_effort).
func (m *Model) disabledEffort() (string, error) {
	p := &m.probe
	p.effort.Do(func() {
		p.disabled = "low"
		without, err := m.probeText(`{"messages":[{"role":"user","content":"Hi"}],"reasoning_effort":"none"}`)
		if err != nil {
			p.refusal = unknownOnly(err)
			return
		}
		for _, effort := range []string{"low", "medium", "high", "xhigh", "max"} {
			with, err := m.probeText(`{"messages":[{"role":"user","content":"Hi"}],"reasoning_effort":"` + effort + `"}`)
			if p.refusal = unknownOnly(err); p.refusal != nil || err == nil && with == without {
				return
			}
		}
		p.disabled = "none"
	})
	return p.disabled, p.refusal
}

// unknownOnly returns err unless an engine refuses the request too.
func unknownOnly(err error) error {
	if errors.Is(err, ErrMalformed) || errors.Is(err, ErrTemplate) {
		return nil
	}
	return err
}

// probeText renders a chat.
func (m *Model) probeText(body string) (string, error) {
	r, err := parse(chats, []byte(body))
	if err != nil {
		return "", err
	}
	x, err := m.RenderAnyway(r, nil)
	if err != nil {
		return "", err
	}
	return x.Text, nil
}

// Texts of the probe, each of which begins and ends with a word of its own, as the engine's.
const (
	probeNote    = "Echo inline note"
	probeThought = "Foxtrot prior reasoning"
	probeSystem  = `{"role":"system","content":"Alpha leading instructions"},{"role":"user","content":"Bravo first question"}`
	probeCall    = `{"role":"assistant",REASONING"tool_calls":[{"id":"probe0001","type":"function","function":{"name":"probe_tool","arguments":"{}"}}]}`
	probeResult  = `{"role":"tool","tool_call_id":"probe0001","content":"Golf output"}`
	probeTools   = `"tools":[{"type":"function","function":{"name":"probe_tool","description":"Probe tool.","parameters":{"type":"object","properties":{}}}}]`
)

// probeMessages are the messages before and behind one that a probe adds.
type probeMessages struct{ before, behind string }

// body returns a chat with a message of the role; "" is without one.
func (p *probeMessages) body(role, fields string) string {
	note := ""
	if role != "" {
		note = `,{"role":"` + role + `","content":"` + probeNote + `"}`
	}
	return `{"messages":[` + p.before + note + p.behind + `]` + fields + `}`
}

// probes are the conversations of the probe.
var probes = [...]probeMessages{
	{probeSystem + `,{"role":"assistant","content":"Charlie first answer"}`, `,{"role":"user","content":"Delta second question"}`},
	{probeSystem + "," + probeCall + "," + probeResult, ""},
	{probeSystem, ""},
}

// keepsInline reports whether system messages stay in place: by Options.InlineSystem, or by a
// probe of the template (main of autumn 2026, _Prober). The engine compares tokens. Here texts
// are compared, and a case in which that is not the same is not scorable.
func (m *Model) keepsInline() (bool, error) {
	if o := m.options.InlineSystem; o == "preserve" || o == "fold" {
		return o == "preserve", nil
	}
	p := &m.probe
	p.inline.Do(func() { p.keeps, p.unknown = m.probeInline() })
	return p.keeps, p.unknown
}

func (m *Model) probeInline() (bool, error) {
	if m.added == nil {
		return false, unscored("", "whether the engine keeps system messages in place depends on the tokens that tokenizer_config.json adds, and it has none: set Options.InlineSystem")
	}
	var done []string
	for _, effort := range []string{`,"reasoning_effort":"high"`, ""} {
		effort = "," + probeTools + effort
		bases := make([]string, len(probes))
		cases := slices.Clone(probes[:])
		var err error
		for i := range cases {
			c := &cases[i]
			before := c.before
			c.before = strings.Replace(before, "REASONING", `"reasoning":"`+probeThought+`",`, 1)
			if bases[i], err = m.probeText(c.body("", effort)); err != nil { // the template may not take it
				c.before = strings.Replace(before, "REASONING", "", 1)
				bases[i], err = m.probeText(c.body("", effort))
			}
			if err != nil {
				break
			}
		}
		if unknown := unknownOnly(err); unknown != nil {
			return false, unknown
		}
		if err != nil || slices.Equal(bases, done) {
			continue
		}
		done = bases
		for i := range cases {
			if keeps, err := m.probeCase(&cases[i], effort, bases[i]); !keeps || err != nil {
				return false, err
			}
		}
	}
	return done != nil, nil
}

// probeCase reports whether a system message changes nothing of the text but adds a piece with
// a role of its own.
func (m *Model) probeCase(c *probeMessages, fields, base string) (bool, error) {
	text, err := m.probeText(c.body("system", fields))
	if err != nil || !strings.Contains(text, probeNote) {
		return false, unknownOnly(err)
	}
	was, is := m.pieces(base), m.pieces(text)
	at, n := insertion(was, is)
	if n < 0 || c.behind == "" && at >= len(was) {
		return false, nil
	}
	added := is[at : at+n]
	if strings.Count(strings.Join(added, ""), probeNote) != 1 || !slices.ContainsFunc(added, m.isAdded) {
		return false, nil
	}
	if c.behind != "" {
		text, err := m.probeText(c.body("user", fields))
		if err := unknownOnly(err); err != nil {
			return false, err
		}
		as := m.pieces(text)
		if at, n := insertion(was, as); err == nil && n >= 0 && slices.Equal(as[at:at+n], added) {
			return false, nil
		}
	}
	if strings.Contains(base, probeThought) != strings.Contains(text, probeThought) {
		return false, nil
	}
	// Between two characters of a text tokens may join.
	for _, edge := range []int{at, at + n} {
		if edge > 0 && edge < len(is) && !m.isAdded(is[edge-1]) && !m.isAdded(is[edge]) {
			return false, unscored("", "whether the engine keeps system messages in place depends on tokens: set Options.InlineSystem")
		}
	}
	return true, nil
}

// pieces cuts a text into the added tokens and single characters.
func (m *Model) pieces(text string) []string {
	var list []string
	for i := 0; i < len(text); {
		n := 1
		for i+n < len(text) && text[i+n]&0xc0 == 0x80 {
			n++
		}
		for _, token := range m.added {
			if strings.HasPrefix(text[i:], token) {
				n = len(token) // the longest goes first
				break
			}
		}
		list = append(list, text[i:i+n])
		i += n
	}
	return list
}

// isAdded reports whether a piece is an added token.
func (m *Model) isAdded(piece string) bool { return slices.Contains(m.added, piece) }

// insertion returns where is has n pieces that was lacks, if that is all that differs; n is -1
// if it is not.
func insertion(was, is []string) (at, n int) {
	most := min(len(was), len(is))
	for at < most && was[at] == is[at] {
		at++
	}
	same := 0
	for same < most-at && was[len(was)-1-same] == is[len(is)-1-same] {
		same++
	}
	if at+same != len(was) {
		return at, -1
	}
	return at, len(is) - same - at
}
