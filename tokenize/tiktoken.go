package tokenize

import (
	"bufio"
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"
)

// LoadTiktoken reads a file of ranks of the tiktoken library: a line for each token,
// with its bytes in base64 and its rank, which is its id. The file may be compressed by
// gzip. It does not contain the rest of the encoding: pattern, a regular expression
// that cuts a text into pieces, and the special tokens, which become their own ids
// wherever a text has them. TiktokenEncoding has both for OpenAI's encodings. Other
// models have them in the code beside the file.
//
// The result makes the ids of tiktoken 0.14.0 with all special tokens allowed. A file with an
// unknown part is refused, as by Load.
func LoadTiktoken(path, pattern string, special map[string]uint32) (*BPE, error) {
	f, err := open(path)
	if err != nil {
		return nil, fmt.Errorf("tokenize: %w", err)
	}
	defer f.Close()
	t, err := parseTiktoken(f, pattern, special)
	if err != nil {
		return nil, fmt.Errorf("tokenize: %s: %w", path, err)
	}
	return t, nil
}

// parseTiktoken is LoadTiktoken for the content of a file.
func parseTiktoken(r io.Reader, regex string, special map[string]uint32) (*BPE, error) {
	p, ok := patternOf(regex)
	if !ok || !p.total || otherMeaning(regex) {
		return nil, unsupported("pattern %.400q", regex)
	}
	t := newBPE()
	t.pre = preTokenizer{steps: []step{{pattern: p}}, byteLevel: true}
	content := sha256.New()
	err := unzipped(r, func(r io.Reader) error {
		ranks, err := readRanks(io.TeeReader(r, content))
		if err != nil {
			return err
		}
		t.model, err = newRankModel(ranks)
		return err
	})
	if err != nil {
		return nil, err
	}
	if t.plain, err = specialTokens(special, t.model.words); err != nil {
		return nil, err
	}
	parts := [][]byte{content.Sum(nil), []byte(regex)}
	for _, token := range slices.Sorted(maps.Keys(special)) {
		parts = append(parts, []byte(token), binary.LittleEndian.AppendUint32(nil, special[token]))
	}
	t.identity = identityOf("tiktoken", parts...)
	return t, nil
}

// otherMeaning reports whether a pattern may have a part that means something else to tiktoken
// than to tokenizers, whose syntax patternOf reads: an interval that is possessive or lazy,
// and the end of the text that is not one of a line.
func otherMeaning(regex string) bool {
	for i := 1; i < len(regex)-1; i++ {
		interval := regex[i] == '}' && strings.IndexByte("0123456789,", regex[i-1]) >= 0
		if interval && strings.IndexByte("+?", regex[i+1]) >= 0 {
			return true
		}
	}
	return strings.Contains(regex, "$")
}

// maxRankedToken is the most bytes of a token in a file of ranks. All its splits
// are looked up, so that a longer one takes time in proportion to the square.
const maxRankedToken = 1 << 9

// readRanks reads a file of ranks (tiktoken 0.14.0, tiktoken/load.py).
func readRanks(r io.Reader) (*vocab, error) {
	ranks := rankReader{v: new(vocab), taken: make([]uint64, maxVocab/64+1)}
	lines := bufio.NewReader(r)
	read := 0
	for err := error(nil); err == nil; {
		var line []byte
		line, err = lines.ReadSlice('\n')
		if errors.Is(err, bufio.ErrBufferFull) {
			return nil, malformed("ranks: a line has more than %d bytes", len(line))
		}
		if err != nil && !errors.Is(err, io.EOF) {
			return nil, err
		}
		if read += len(line); read > maxFile {
			return nil, malformed("longer than %d bytes", maxFile)
		}
		if err := ranks.add(line); err != nil {
			return nil, err
		}
	}
	if i := ranks.v.index(); i >= 0 {
		return nil, malformed("ranks: token %.60q is repeated", ranks.v.at(i))
	}
	return ranks.v, nil
}

type rankReader struct {
	v     *vocab
	taken []uint64 // a bit for each rank
	token [maxRankedToken + 3]byte
}

// add reads a line, which may be empty.
func (r *rankReader) add(line []byte) error {
	fields := bytes.Fields(line)
	if len(fields) == 0 {
		return nil
	}
	if len(fields) != 2 {
		return malformed("ranks: line %.60q is not a token and a rank", line)
	}
	token, rank := fields[0], fields[1]
	if base64.StdEncoding.DecodedLen(len(token)) > len(r.token) {
		return malformed("ranks: a token has more than %d bytes", maxRankedToken)
	}
	n, err := base64.StdEncoding.Decode(r.token[:], token)
	if err != nil || n == 0 {
		return malformed("ranks: token %.60q is not base64", token)
	}
	if n > maxRankedToken {
		return malformed("ranks: a token has more than %d bytes", maxRankedToken)
	}
	id, ok := parseID(rank, maxVocab)
	if !ok {
		return malformed("ranks: token %.60q has rank %.20q, not an integer below %d", token, rank, maxVocab)
	}
	if r.taken[id/64]>>(id%64)&1 != 0 {
		return malformed("ranks: token %.60q has rank %d, which another has", token, id)
	}
	r.taken[id/64] |= 1 << (id % 64)
	r.v.add(r.token[:n], id)
	return nil
}

// newRankModel makes a model of tokens whose ids are their ranks (tiktoken 0.14.0,
// src/lib.rs). There a pair merges if the bytes of both together are a token, at
// that token's rank; so each two tokens that make a third are a merge.
func newRankModel(ranks *vocab) (*model, error) {
	t := &model{words: ranks, uncut: true, cached: true}
	t.symbols.bytes = new([256]uint32)
	for b := range t.symbols.bytes {
		id, ok := ranks.id([]byte{byte(b)})
		if !ok {
			return nil, unsupported("a file of ranks without the byte %#02x", b)
		}
		t.symbols.bytes[b] = id
	}
	splits, err := splitsOf(ranks)
	if err != nil {
		return nil, err
	}
	t.merges = newMergeTable(len(splits))
	last := noID
	for _, s := range splits {
		if s.id != last {
			t.merges.result = append(t.merges.result, s.id)
			last = s.id
		}
		t.merges.ranks.set(s.left, s.right, uint32(len(t.merges.result)-1))
	}
	t.findAlone()
	return t, nil
}

// A split is a token as two others make it.
type split struct{ id, left, right uint32 }

// splitsOf returns all splits of all tokens, sorted by their ids.
func splitsOf(ranks *vocab) ([]split, error) {
	var splits []split
	for i, id := range ranks.ids {
		text := ranks.at(i)
		for mid := 1; mid < len(text); mid++ {
			left, ok := ranks.id(text[:mid])
			if !ok {
				continue
			}
			if right, ok := ranks.id(text[mid:]); ok {
				splits = append(splits, split{id, left, right})
			}
		}
		if len(splits) > maxMerges {
			return nil, malformed("ranks: more than %d ways to merge", maxMerges)
		}
	}
	slices.SortStableFunc(splits, func(a, b split) int { return cmp.Compare(a.id, b.id) })
	return splits, nil
}

// specialTokens returns a matcher of a text's special tokens. The tiktoken library finds them
// by a regular expression whose alternatives have no order, so of two where one begins with
// the other it may find either.
func specialTokens(special map[string]uint32, ranks *vocab) (*matcher, error) {
	if len(special) > maxAdded {
		return nil, malformed("more than %d special tokens", maxAdded)
	}
	ids := map[uint32]bool{}
	var tokens []addedToken
	for content, id := range special {
		if content == "" || len(content) > maxContent || !utf8.ValidString(content) {
			return nil, malformed("special token %.60q is empty, longer than %d bytes or not UTF-8", content, maxContent)
		}
		if id >= maxVocab {
			return nil, malformed("special token %.60q has id %d, not below %d", content, id, maxVocab)
		}
		ids[id] = true
		tokens = append(tokens, addedToken{content: content, id: id})
	}
	for i, id := range ranks.ids {
		if ids[id] {
			return nil, malformed("a special token has id %d, which token %.60q has", id, ranks.at(i))
		}
	}
	m, err := newMatcher(tokens) // which sorts them
	if err != nil {
		return nil, err
	}
	for i := 1; i < len(tokens); i++ {
		if strings.HasPrefix(tokens[i].content, tokens[i-1].content) {
			return nil, unsupported("special token %.60q, which begins with another, %.60q,", tokens[i].content, tokens[i-1].content)
		}
	}
	return m, nil
}

// TiktokenEncoding returns the pattern and the special tokens of one of OpenAI's
// encodings: r50k_base, p50k_base, p50k_edit, cl100k_base, o200k_base or o200k_harmony
// (tiktoken 0.14.0, tiktoken_ext/openai_public.py). The ranks of p50k_edit are those of
// p50k_base, and the ranks of o200k_harmony those of o200k_base. Of the first four
// encodings the pattern is an older version, which tiktoken has changed only for speed.
// Both versions give the same ids.
func TiktokenEncoding(name string) (pattern string, special map[string]uint32, err error) {
	switch name {
	case "r50k_base", "p50k_base":
		return gpt2Pattern, map[string]uint32{"<|endoftext|>": 50256}, nil
	case "p50k_edit":
		return gpt2Pattern, map[string]uint32{
			"<|endoftext|>": 50256, "<|fim_prefix|>": 50281, "<|fim_middle|>": 50282, "<|fim_suffix|>": 50283,
		}, nil
	case "cl100k_base":
		return llama3Pattern, map[string]uint32{
			"<|endoftext|>": 100257, "<|fim_prefix|>": 100258, "<|fim_middle|>": 100259,
			"<|fim_suffix|>": 100260, "<|endofprompt|>": 100276,
		}, nil
	case "o200k_base":
		return o200kPattern, map[string]uint32{"<|endoftext|>": 199999, "<|endofprompt|>": 200018}, nil
	case "o200k_harmony":
		return o200kPattern, harmonyTokens(), nil
	}
	return "", nil, fmt.Errorf("tokenize: %w", unsupported("encoding %.60q", name))
}

// harmonyTokens has a name for each id, and two for 200018.
func harmonyTokens() map[string]uint32 {
	special := map[string]uint32{
		"<|startoftext|>": 199998, "<|endoftext|>": 199999, "<|endofprompt|>": 200018,
		"<|return|>": 200002, "<|constrain|>": 200003, "<|channel|>": 200005, "<|start|>": 200006,
		"<|end|>": 200007, "<|message|>": 200008, "<|call|>": 200012,
	}
	reserve := func(from, to uint32) {
		for id := from; id < to; id++ {
			special[fmt.Sprintf("<|reserved_%d|>", id)] = id
		}
	}
	reserve(200000, 200002)
	reserve(200004, 200005)
	reserve(200009, 200012)
	reserve(200013, 201088)
	return special
}
