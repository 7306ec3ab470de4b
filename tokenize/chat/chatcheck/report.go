package chatcheck

import (
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
)

// A Report compares an engine's tokens with those of this package, by conversation. It is
// plain data, and JSON has all of it.
type Report []Conversation

// A Conversation is one chat of a Report.
type Conversation struct {
	Name     string
	Feature  string   // that it tests, as in chat.Model.Exclude
	Features []string // all that it uses
	Request  string   // the body that was sent

	// Outcome is one of these. The second, third and fourth are differences:
	//
	//	equal
	//	differs            the tokens differ
	//	engine refuses     the engine refuses the request, and this package accepts it
	//	engine takes       the engine accepts the request, and this package refuses it
	//	both refuse        no difference
	//	not scorable here  an Indexer gives it no score
	//	no answer          the engine failed
	Outcome string

	// Difference describes the first difference, or the reason why there is nothing to compare.
	// It is "" if the two are equal.
	Difference string

	here, engine side
}

// A side is a conversation as this package or the engine has it.
type side struct {
	// Text is the rendered text. The engine's is the answer of its /detokenize, requested only
	// if the tokens differ: "" without an answer, and not always the whole text, because
	// decoding may drop a space.
	Text    string
	Tokens  []uint32
	Refusal string // why there are no tokens
}

// The outcomes.
const (
	equal         = "equal"
	differs       = "differs"
	engineRefuses = "engine refuses"
	engineTakes   = "engine takes"
	bothRefuse    = "both refuse"
	notScorable   = "not scorable here"
	noAnswer      = "no answer"
)

func (c *Conversation) differs() bool {
	return c.Outcome == differs || c.Outcome == engineRefuses || c.Outcome == engineTakes
}

// Differs returns the features that differ, for [chat.Model.Exclude]; none if all
// compared conversations are equal.
//
// A conversation that differs counts for the feature that it tests, unless another
// feature that it uses differs by itself. So chats without these features are equal
// in the engine, as far as the conversations show.
func (r Report) Differs() []string {
	features, _ := r.differs()
	return features
}

// differs also returns the conversations that show the differences.
func (r Report) differs() (features []string, shown []*Conversation) {
	for i := range r {
		c := &r[i]
		if !c.differs() || slices.ContainsFunc(c.Features, func(f string) bool { return f != c.Feature && slices.Contains(features, f) }) {
			continue
		}
		if !slices.Contains(features, c.Feature) {
			features = append(features, c.Feature)
		}
		shown = append(shown, c)
	}
	return features, shown
}

// String describes each difference, with its place and the request, and lists the
// conversations that were not compared. It is one line if all are equal.
func (r Report) String() string {
	var same int
	var also []string
	var b, rest strings.Builder
	features, shown := r.differs()
	for i := range r {
		switch c := &r[i]; {
		case c.Outcome == equal:
			same++
		case !c.differs():
			fmt.Fprintf(&rest, "\nnot compared: %s (%s): %s: %s", c.Name, c.Feature, c.Outcome, c.Difference)
		case !slices.Contains(shown, c):
			also = append(also, c.Name)
		}
	}
	fmt.Fprintf(&b, "%d of %d conversations are equal, ", same, len(r))
	if features == nil {
		b.WriteString("none differs")
	} else {
		b.WriteString("these features differ: " + strings.Join(features, ","))
	}
	for _, c := range shown {
		fmt.Fprintf(&b, "\n%s (%s): %s: %s\n  request: %s", c.Name, c.Feature, c.Outcome, c.Difference, c.Request)
	}
	if also != nil {
		b.WriteString("\nby the same features, also: " + strings.Join(also, ", "))
	}
	return b.String() + rest.String()
}

// difference describes how the two sides differ.
func (c *Conversation) difference() string {
	switch c.Outcome {
	case notScorable:
		return c.here.Refusal
	case bothRefuse:
		return "here " + c.here.Refusal + "; in the engine " + c.engine.Refusal
	case engineTakes:
		return "here " + c.here.Refusal
	case engineRefuses:
		return "in the engine " + c.engine.Refusal
	}
	return c.firstToken() + c.firstByte()
}

func (c *Conversation) firstToken() string {
	here, engine := c.here.Tokens, c.engine.Tokens
	at := common(here, engine)
	token := func(ids []uint32) string {
		if at == len(ids) {
			return fmt.Sprintf("none (the end of %d)", at)
		}
		return fmt.Sprintf("%d", ids[at])
	}
	return fmt.Sprintf("token %d is %s in the engine and %s here", at, token(engine), token(here))
}

// firstByte is firstToken for the texts.
func (c *Conversation) firstByte() string {
	here, engine := c.here.Text, c.engine.Text
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

// quoted returns the beginning of a text, quoted.
func quoted(s string) string { return fmt.Sprintf("%q", cut(s, 60)) }

// common returns how many leading elements two slices share.
func common[T comparable](a, b []T) int {
	n := 0
	for n < min(len(a), len(b)) && a[n] == b[n] {
		n++
	}
	return n
}
