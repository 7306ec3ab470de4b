package tokenize

import (
	"bufio"
	"compress/flate"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"unicode/utf8"
)

// Limits on what a file may ask for; the largest tokenizers known have a third
// of each or less. Loading takes memory in proportion to the file.
const (
	maxFile   = 64 << 20 // bytes, unpacked
	maxVocab  = 1 << idBits
	maxMerges = 1<<rankBits - 1
	maxToken  = 1 << 12 // bytes of a token, as the file writes it
	maxAdded  = 1 << 16 // added tokens
	maxAround = 1 << 10 // tokens that the post-processor adds
	maxSteps  = 1 << 6  // components of a sequence
)

// Load reads the tokenizer.json at path, or the tokenizer.json or
// tokenizer.json.gz in the folder path. The file may be gzip'd whatever its name.
func Load(path string) (*BPE, error) {
	path, err := tokenizerFile(path)
	if err != nil {
		return nil, fmt.Errorf("tokenize: %w", err)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("tokenize: %w", err)
	}
	defer f.Close()
	t, err := parse(f)
	if err != nil {
		return nil, fmt.Errorf("tokenize: %s: %w", path, err)
	}
	return t, nil
}

// tokenizerFile returns path, or the file in it if it is a folder.
func tokenizerFile(path string) (string, error) {
	info, err := os.Stat(path)
	if err != nil || !info.IsDir() {
		return path, err
	}
	for _, name := range []string{"tokenizer.json", "tokenizer.json.gz"} {
		file := filepath.Join(path, name)
		if _, err = os.Stat(file); !errors.Is(err, fs.ErrNotExist) {
			return file, err
		}
	}
	return "", fmt.Errorf("no tokenizer.json in %s: %w", path, fs.ErrNotExist)
}

// Parse reads a tokenizer.json, gzip'd or not.
func Parse(r io.Reader) (*BPE, error) {
	t, err := parse(r)
	if err != nil {
		return nil, fmt.Errorf("tokenize: %w", err)
	}
	return t, nil
}

func parse(r io.Reader) (*BPE, error) {
	data, err := readFile(r)
	if err != nil {
		return nil, err
	}
	if !utf8.Valid(data) {
		return nil, malformed("not UTF-8")
	}
	if !json.Valid(data) {
		return nil, malformed("not JSON, or cut off")
	}
	file, err := parseObject("the file", data[afterSpace(data, 0):])
	if err != nil {
		return nil, err
	}
	return parseSections(file)
}

// readFile reads all of r, unpacked, and stops past maxFile.
func readFile(r io.Reader) ([]byte, error) {
	b := bufio.NewReader(r)
	magic, _ := b.Peek(2) // an error comes again
	if string(magic) == "\x1f\x8b" {
		z, err := gzip.NewReader(b)
		if err != nil {
			return nil, gzipError(err)
		}
		data, err := readAll(z)
		return data, gzipError(err)
	}
	return readAll(b)
}

func readAll(r io.Reader) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(r, maxFile+1))
	if err == nil && len(data) > maxFile {
		err = malformed("longer than %d bytes", maxFile)
	}
	return data, err
}

// gzipError makes err ErrMalformed if it is about what was read, not the reading.
func gzipError(err error) error {
	var corrupt flate.CorruptInputError
	if errors.Is(err, gzip.ErrChecksum) || errors.Is(err, gzip.ErrHeader) ||
		errors.Is(err, io.ErrUnexpectedEOF) || errors.As(err, &corrupt) {
		return malformed("gzip: %v", err)
	}
	return err
}

func parseSections(file object) (*BPE, error) {
	if err := file.only("version", "truncation", "padding", "added_tokens", "normalizer",
		"pre_tokenizer", "post_processor", "decoder", "model"); err != nil {
		return nil, err
	}
	if err := checkInert(file); err != nil {
		return nil, err
	}
	t := &BPE{scratch: sync.Pool{New: func() any { return new(scratch) }}}
	var err error
	if t.normalizer, err = parseNormalizer(file.values["normalizer"]); err != nil {
		return nil, err
	}
	if t.pre, err = parsePreTokenizer(file.values["pre_tokenizer"]); err != nil {
		return nil, err
	}
	if t.before, t.after, err = parsePostProcessor(file); err != nil {
		return nil, err
	}
	var vocab map[string]uint32
	if t.model, vocab, err = parseModel(file.values["model"]); err != nil {
		return nil, err
	}
	t.plain, t.normalized, err = parseAdded(file, vocab)
	if err != nil {
		return nil, err
	}
	return t, nil
}

// checkInert refuses what must be absent, and checks what has no part in encoding.
func checkInert(file object) error {
	if _, ok := file.values["version"]; ok {
		version, err := file.text("version")
		if err != nil {
			return err
		}
		if version != "1.0" {
			return unsupported("version %.60q", version)
		}
	}
	for _, name := range []string{"truncation", "padding"} {
		if !file.absent(name) {
			return unsupported("%s", name)
		}
	}
	if file.absent("decoder") {
		return nil
	}
	d, err := parseComponent("decoder", file.values["decoder"])
	if err != nil {
		return err
	}
	if d.kind != "ByteLevel" {
		return unsupported("decoder %.60q", d.kind)
	}
	_, err = parseByteLevel(d)
	return err
}

func unsupported(format string, args ...any) error {
	return fmt.Errorf("%s is %w", fmt.Sprintf(format, args...), ErrUnsupported)
}

func malformed(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrMalformed, fmt.Sprintf(format, args...))
}
