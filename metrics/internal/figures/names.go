package figures

import (
	"strconv"
	"strings"
	"sync"
)

// names gives each name its own label. Invalid UTF-8 becomes U+FFFD. If another name has the label
// already, a number is appended: "~2". A name keeps its label until it was freed as often as it was
// taken. Safe for concurrent use.
type names struct {
	mu     sync.Mutex
	labels map[string]*label // by name
	taken  map[string]bool   // texts of labels
}

type label struct {
	text string
	uses int
}

func (n *names) of(name string) string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.label(name)
}

// label is of for callers that hold mu.
func (n *names) label(name string) string {
	l := n.labels[name]
	if l == nil {
		if n.labels == nil {
			n.labels, n.taken = make(map[string]*label), make(map[string]bool)
		}
		text := strings.ToValidUTF8(name, "\uFFFD")
		for i, valid := 2, text; n.taken[text]; i++ {
			text = valid + "~" + strconv.Itoa(i)
		}
		l = &label{text: text}
		n.labels[strings.Clone(name)], n.taken[text] = l, true
	}
	l.uses++
	return l.text
}

func (n *names) free(name string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	l := n.labels[name]
	if l.uses--; l.uses == 0 {
		delete(n.labels, name)
		delete(n.taken, l.text)
	}
}

// firstNames gives permanent labels to the first names, up to a bound. Further names have the
// label "".
type firstNames struct {
	names
	most int
}

func (b *firstNames) of(name string) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	if name == "" || b.labels[name] == nil && len(b.labels) >= b.most {
		return ""
	}
	return b.label(name)
}
