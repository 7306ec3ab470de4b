package kvindex

// Candidates is a list of pods to score for one model, for many requests: their names
// are looked up once and not for each request. It follows pods as they come and go. It
// is made by Indexer.Candidates, never changes for its user, and is safe for concurrent
// use.
type Candidates struct{ of *podList }

// Candidates returns the pods with these names as Candidates for model, which is a name
// as in Request.Model. With pods nil it is all known pods of the model, now and later;
// with pods empty it is none. It keeps nothing of pods. If one of the names is empty, each
// request with the Candidates is an error.
func (x *Indexer) Candidates(model string, pods []string) *Candidates {
	return &Candidates{x.reg.newList(model, pods)}
}
