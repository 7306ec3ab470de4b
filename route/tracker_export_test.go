package route

// InMemory returns the number of pods, and of notes of others, that a Tracker has in memory.
func (t *Tracker) InMemory() (pods, notes int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, o := range t.origins {
		notes += 1 + len(o.pods)
	}
	if read := t.read.Load(); read != nil {
		return max(len(t.pods), len(*read)), notes
	}
	return len(t.pods), notes
}

// Locked reports whether some pods are found with a lock only.
func (t *Tracker) Locked() bool { return t.newer.Load() }

// Notes is what Changes and State return.
type Notes struct {
	Life  int64
	Seq   uint64
	Whole bool
	Pods  []Note
}

type Note struct {
	Pod  string
	Rank int
	Load Load
}

func (n Notes) Encode() []byte {
	e := notes{life: n.Life, seq: n.Seq, whole: n.Whole}
	for _, p := range n.Pods {
		e.pods = append(e.pods, note{podRank{p.Pod, p.Rank}, p.Load})
	}
	return e.encode()
}

func DecodeNotes(data []byte) (Notes, error) {
	d, err := decodeNotes(data)
	n := Notes{Life: d.life, Seq: d.seq, Whole: d.whole}
	for _, p := range d.pods {
		n.Pods = append(n.Pods, Note{p.at.name, p.at.rank, p.load})
	}
	return n, err
}
