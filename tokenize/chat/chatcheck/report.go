package chatcheck

import (
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/kvindex/kvindex/tokenize/chat"
)

// A Report says how an engine's tokens compare with those that are told here. It is
// plain data, which JSON takes.
type Report struct {
	URL, Model    string // of the engine; without a password and "/v1"
	Conversations []Conversation
}

// A Conversation is one of a Report.
type Conversation struct {
	Name     string
	Feature  chat.Features // what it is about
	Features chat.Features // all that it uses
	Request  string        // the body, as it was sent
	Outcome  Outcome

	Here, Engine Side

	// Difference says where the two differ first, or why there is nothing to
	// compare. It is "" if they are equal.
	Difference string
}

// A Side is what a conversation is here, or in the engine.
type Side struct {
	// Text is what was rendered. The engine's is what its /detokenize makes of its
	// tokens, asked for only if these differ from those here: "" if it does not
	// answer, and not always the whole text, as decoding may drop a space.
	Text    string
	Tokens  []uint32
	Refusal string // why there are no tokens
}

// Outcome is how a conversation compares. It has its String in JSON.
type Outcome uint8

// The outcomes. Differs, EngineRefuses and EngineTakes are differences.
const (
	Equal         Outcome = iota
	Differs               // the tokens differ
	EngineRefuses         // the engine refuses what is taken here
	EngineTakes           // the engine takes what is refused here
	BothRefuse            // which is no difference
	NotScorable           // not scorable here, so that nothing would be claimed
	NoAnswer              // the engine failed at it
)

var outcomeNames = []string{"equal", "differs", "engine refuses", "engine takes", "both refuse", "not scorable here", "no answer"}

func (o Outcome) String() string {
	if int(o) < len(outcomeNames) {
		return outcomeNames[o]
	}
	return fmt.Sprintf("outcome %d", uint8(o))
}

// MarshalText returns the String of o.
func (o Outcome) MarshalText() ([]byte, error) { return []byte(o.String()), nil }

// UnmarshalText reads what MarshalText has written.
func (o *Outcome) UnmarshalText(text []byte) error {
	i := slices.Index(outcomeNames, string(text))
	if i < 0 {
		return fmt.Errorf("chatcheck: %.60q is no outcome", text)
	}
	*o = Outcome(i)
	return nil
}

func (o Outcome) differs() bool { return o == Differs || o == EngineRefuses || o == EngineTakes }

// Differs returns the features that differ, for [chat.Model.Exclude]; none if all
// that was compared is equal.
//
// A conversation that differs is laid to the feature that it is about, unless
// another that it uses differs by itself: so chats that use none of what Differs
// returns are, by these conversations, the engine's.
func (r *Report) Differs() chat.Features {
	f, _ := r.differs()
	return f
}

// differs returns also the conversations that show it.
func (r *Report) differs() (f chat.Features, shown []*Conversation) {
	for i := range r.Conversations {
		if c := &r.Conversations[i]; c.Outcome.differs() && c.Features&^c.Feature&f == 0 {
			f |= c.Feature
			shown = append(shown, c)
		}
	}
	return f, shown
}

// String says what differs, with where and the request, and what was not compared.
// It is one line if all is equal.
func (r *Report) String() string {
	var equal int
	var also []string
	var b, rest strings.Builder
	f, shown := r.differs()
	for i := range r.Conversations {
		switch c := &r.Conversations[i]; {
		case c.Outcome == Equal:
			equal++
		case !c.Outcome.differs():
			fmt.Fprintf(&rest, "\nnot compared: %s (%s): %s: %s", c.Name, c.Feature, c.Outcome, c.Difference)
		case !slices.Contains(shown, c):
			also = append(also, c.Name)
		}
	}
	fmt.Fprintf(&b, "%s at %s: %d of %d conversations are equal, ", r.Model, r.URL, equal, len(r.Conversations))
	if f == 0 {
		b.WriteString("none differs")
	} else {
		b.WriteString("what differs is " + f.String())
	}
	for _, c := range shown {
		fmt.Fprintf(&b, "\n%s (%s): %s: %s\n  asked: %s", c.Name, c.Feature, c.Outcome, c.Difference, c.Request)
	}
	if also != nil {
		b.WriteString("\nfor that, or by more, also: " + strings.Join(also, ", "))
	}
	return b.String() + rest.String()
}

// difference says in words how the two sides differ.
func (c *Conversation) difference() string {
	switch c.Outcome {
	case NotScorable:
		return c.Here.Refusal
	case BothRefuse:
		return "here " + c.Here.Refusal + "; in the engine " + c.Engine.Refusal
	case EngineTakes:
		return "here " + c.Here.Refusal
	case EngineRefuses:
		return "in the engine " + c.Engine.Refusal
	}
	return c.firstToken() + c.firstByte()
}

func (c *Conversation) firstToken() string {
	here, engine := c.Here.Tokens, c.Engine.Tokens
	at := common(here, engine)
	token := func(ids []uint32) string {
		if at == len(ids) {
			return fmt.Sprintf("none (the end of %d)", at)
		}
		return fmt.Sprintf("%d", ids[at])
	}
	return fmt.Sprintf("token %d is %s in the engine and %s here", at, token(engine), token(here))
}

// firstByte tells from the texts what firstToken tells from the tokens.
func (c *Conversation) firstByte() string {
	here, engine := c.Here.Text, c.Engine.Text
	at := common([]byte(here), []byte(engine))
	switch {
	case engine == "":
		return ""
	case here == engine:
		return "; the texts are equal, so the tokenizers differ, or one puts special tokens around the text"
	}
	for at > 0 && (!runeStarts(here, at) || !runeStarts(engine, at)) {
		at--
	}
	return fmt.Sprintf("; byte %d begins %s in the engine and %s here", at, quoted(engine[at:]), quoted(here[at:]))
}

func runeStarts(s string, at int) bool { return at == len(s) || utf8.RuneStart(s[at]) }

// quoted is the beginning of a text.
func quoted(s string) string { return fmt.Sprintf("%q", cut(s, 60)) }

// common returns how many leading elements two slices share.
func common[T comparable](a, b []T) int {
	n := 0
	for n < min(len(a), len(b)) && a[n] == b[n] {
		n++
	}
	return n
}
