package chatcheck

import (
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
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
	Feature  string   // what it is about, as in chat.Model.Exclude
	Features []string // all that it uses
	Request  string   // the body, as it was sent

	// Outcome is how it compares. Of these, the second, third and fourth are differences:
	//
	//	equal
	//	differs            the tokens differ
	//	engine refuses     the engine refuses what is taken here
	//	engine takes       the engine takes what is refused here
	//	both refuse        which is no difference
	//	not scorable here  so that nothing would be claimed
	//	no answer          the engine failed at it
	Outcome string

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
// that was compared is equal.
//
// A conversation that differs is laid to the feature that it is about, unless
// another that it uses differs by itself: so chats that use none of what Differs
// returns are, by these conversations, the engine's.
func (r *Report) Differs() []string {
	features, _ := r.differs()
	return features
}

// differs returns also the conversations that show it.
func (r *Report) differs() (features []string, shown []*Conversation) {
	for i := range r.Conversations {
		c := &r.Conversations[i]
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

// String says what differs, with where and the request, and what was not compared.
// It is one line if all is equal.
func (r *Report) String() string {
	var same int
	var also []string
	var b, rest strings.Builder
	features, shown := r.differs()
	for i := range r.Conversations {
		switch c := &r.Conversations[i]; {
		case c.Outcome == equal:
			same++
		case !c.differs():
			fmt.Fprintf(&rest, "\nnot compared: %s (%s): %s: %s", c.Name, c.Feature, c.Outcome, c.Difference)
		case !slices.Contains(shown, c):
			also = append(also, c.Name)
		}
	}
	fmt.Fprintf(&b, "%s at %s: %d of %d conversations are equal, ", r.Model, r.URL, same, len(r.Conversations))
	if features == nil {
		b.WriteString("none differs")
	} else {
		b.WriteString("what differs is " + strings.Join(features, ","))
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
	case notScorable:
		return c.Here.Refusal
	case bothRefuse:
		return "here " + c.Here.Refusal + "; in the engine " + c.Engine.Refusal
	case engineTakes:
		return "here " + c.Here.Refusal
	case engineRefuses:
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
