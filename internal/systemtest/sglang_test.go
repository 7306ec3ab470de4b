package systemtest

import (
	"path/filepath"
	"slices"
	"strconv"
	"testing"

	"github.com/kvindex/kvindex"
	"github.com/kvindex/kvindex/internal/testdata"
)

// sglangRuns are the recorded runs of SGLang's trees without window or Mamba layers and without
// namespaces that its events hide. t* have one event a page.
var sglangRuns = []string{
	"s01_*", "s02_*", "s03_*", "s05_*", "s06_*", "s07_*", "s08_*", "s09_*", "s10_*", "s11_*", "s13_*", "s40_old_radix*",
	"t01_*", "t02_*", "t06_*", "t08_*",
}

func sglangRecordings(t *testing.T, patterns ...string) (paths []string) {
	t.Helper()
	for _, p := range patterns {
		paths = append(paths, testdata.Glob(t, "the recorded runs of SGLang's prefix cache", "oracle", "sglang", p+".jsonl.gz")...)
	}
	return paths
}

// plain returns the query as recorded, with media in its tokens.
func (q *recordedQuery) plain(*testing.T) kvindex.Request {
	return kvindex.Request{Salt: q.Salt, Tokens: q.Tokens}
}

// placeholder stands for media in the prompts of padded.
const placeholder = 7

// padded returns the query as gateways have it, with placeholders for media.
func (q *recordedQuery) padded(t *testing.T) kvindex.Request {
	r := q.plain(t)
	r.Tokens = slices.Clone(r.Tokens)
	for _, m := range q.MM {
		hash, err := strconv.ParseUint(m.ID, 16, 64)
		must(t, err)
		r.Media = append(r.Media, kvindex.Media{Hash: strconv.FormatUint(hash, 10), Offset: m.Offset, Length: m.Length})
		for i := range m.Length {
			r.Tokens[m.Offset+i] = placeholder
		}
	}
	return r
}

// TestRecordedSGLang: all answers are right, with SGLang's profile and without one.
func TestRecordedSGLang(t *testing.T) {
	t.Parallel()
	var profiled, unprofiled tally
	media := 0
	for _, path := range third(sglangRecordings(t, sglangRuns...)) {
		rows := readRecording(t, path)
		var p, u tally
		replay(t, rows, kvindex.Profile{}, (*recordedQuery).plain, u.add)
		replay(t, rows, kvindex.Profile{Media: kvindex.MediaPad}, (*recordedQuery).padded, p.add)
		for _, r := range rows {
			if r.Query != nil {
				media += len(r.Query.MM)
			}
		}
		t.Logf("%-28s %+v without a profile %+v", filepath.Base(path), p, u)
		if p.over+p.under+p.heldWrong+u.over+u.under+u.heldWrong > 0 {
			t.Errorf("%s: %+v, without a profile %+v", path, p, u)
		}
		profiled.sum(p)
		unprofiled.sum(u)
	}
	t.Logf("%+v, %d media", profiled, media)
	t.Logf("without a profile %+v", unprofiled)
	if !testing.Short() && (profiled.queries < 8000 || profiled.hits < 5000 || media < 100) {
		t.Errorf("too few questions: %+v, %d media", profiled, media)
	}
}

// TestRecordedSGLangUntold: unpublished blocks are not claimed, and only unavoidable answers are
// wrong if several namespaces share the cache.
func TestRecordedSGLangUntold(t *testing.T) {
	for name, over := range map[string]int{"s12_late": 0, "s04_extra_key": 19, "s14_mix": 23, "t04_extra_key": 53} {
		rows := readRecording(t, sglangRecordings(t, name)[0])
		var p, u tally
		replay(t, rows, kvindex.Profile{}, (*recordedQuery).plain, u.add)
		replay(t, rows, kvindex.Profile{Media: kvindex.MediaPad}, (*recordedQuery).padded, p.add)
		t.Logf("%-28s %+v without a profile %+v", name, p, u)
		if p.over > over || p.under > 8 || u.over > over || p.queries < 300 {
			t.Errorf("%s: %+v, without a profile %+v", name, p, u)
		}
	}
}

// TestRecordedSGLangHost: with a host tier (HiCache), the reused tokens of the GPU and the loaded
// ones of the host are right.
func TestRecordedSGLangHost(t *testing.T) {
	queries, hosted := 0, 0
	for _, path := range sglangRecordings(t, "s30_*") {
		rows := readRecording(t, path)
		wrong := 0
		var questions []recording
		for _, r := range rows[1:] {
			if r.Query != nil {
				questions = append(questions, r)
			}
		}
		for _, p := range []kvindex.Profile{{}, {Media: kvindex.MediaPad}} {
			at := 0
			replay(t, rows, p, (*recordedQuery).plain, func(got kvindex.PodScore, _, computed int) {
				want := questions[at]
				at++
				if want.HostTokens > 0 {
					hosted++
				}
				if got.CachedTokens != computed || got.LoadedTokens != want.HostTokens || got.FetchedTokens != 0 ||
					got.MatchedBlocks*got.BlockTokens != want.HeldAny || got.UpperBound {
					if wrong++; wrong < 4 {
						t.Errorf("%s: got %+v, want %d tokens, %d more from the host, %d held", filepath.Base(path), got, computed, want.HostTokens, want.HeldAny)
					}
				}
			})
			queries += at
		}
		if wrong > 0 {
			t.Errorf("%s: %d of %d answers are wrong", filepath.Base(path), wrong, 2*len(questions))
		}
	}
	if queries < 2*2417 || hosted < 2 {
		t.Errorf("%d questions, %d with pages of the host tier", queries, hosted)
	}
	t.Logf("%d questions, %d with pages of the host tier", queries, hosted)
}
