// Package janitor keeps the folders of vLLM's file tier within bounds, and reports which
// blocks are there.
//
// The layout is that of vllm/v1/kv_offload/file_mapper.py and tiering/fs/manager.py, of
// vLLM 0.22 to 0.29; llm-d's connector writes the same with vLLM's FileMapper:
//
//	<root>/<model>_<digest>/config.json
//	<root>/<model>_<digest>_r<rank>/<hhh>/<hh>_g<group>/<hash>.bin
//	<root>/<model>_<digest>_r<rank>/<hhh>/<hh>_g<group>/<hash>.bin_<number>.tmp
//
// hhh and hh are the first digits of the hash. vLLM never deletes a file there, but for one
// that it could not read.
//
// Ranks: vLLM's tier runs in the scheduler, whose rank is 0 (OffloadingParallelConfig.rank in
// vllm/v1/kv_offload/config.py), and writes the bytes of all workers to one file. A connector
// whose workers write has a file for each rank: the product of the sizes of tensor, pipeline
// and prefill context parallelism, which is vLLM's world size; decode context parallelism
// uses the ranks of tensor parallelism. So a block is there with the file of rank 0 where no
// other rank has a folder, and with the files of all ranks where one has.
package janitor

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// Limits of what is read.
const (
	maxConfigBytes = 4 << 20 // config.json; it names all layers
	maxConfigDepth = 32
	maxRanks       = 64
	maxHashBytes   = 32
)

// Config describes the blocks in a folder, by its config.json.
type Config struct {
	Model         string
	TokensPerHash int
	BlocksPerFile int // blocks of the engine in a file, which has the hash of the last
	Ranks         int // 1, where the layout does not depend on parallelism
}

// parseConfig reads config.json. folder is the name that vLLM gives the folder of such a
// config: it ends with the digest.
func parseConfig(data []byte) (cfg Config, folder string, err error) {
	if len(data) > maxConfigBytes {
		return Config{}, "", fmt.Errorf("config.json has more than %d bytes", maxConfigBytes)
	}
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	var fields map[string]any
	if err := d.Decode(&fields); err != nil {
		return Config{}, "", fmt.Errorf("config.json: %w", err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return Config{}, "", errors.New("config.json: more follows the object")
	}
	model, ok := fields["model_name"].(string)
	if !ok || model == "" || strings.ContainsRune(model, 0) {
		return Config{}, "", errors.New("config.json: model_name is not a name")
	}
	cfg = Config{Model: model, Ranks: 1}
	for _, f := range []struct {
		to    *int
		names []string // the newest first
	}{
		{&cfg.TokensPerHash, []string{"tokens_per_hash", "hash_block_size"}},
		{&cfg.BlocksPerFile, []string{"blocks_per_file", "gpu_blocks_per_file"}},
	} {
		name := f.names[0]
		if _, ok := fields[name]; !ok {
			name = f.names[1]
		}
		if *f.to, err = size(fields, name); err != nil {
			return Config{}, "", err
		}
	}
	for _, name := range []string{"tp_size", "pp_size", "pcp_size"} {
		n, err := size(fields, name)
		if err != nil {
			return Config{}, "", err
		}
		if cfg.Ranks *= n; cfg.Ranks > maxRanks {
			return Config{}, "", fmt.Errorf("config.json: more than %d ranks", maxRanks)
		}
	}
	canonical, err := appendCanonical(nil, fields, 0)
	if err != nil {
		return Config{}, "", err
	}
	sum := sha256.Sum256(canonical)
	return cfg, strings.ReplaceAll(model, "/", "_") + "_" + hex.EncodeToString(sum[:6]), nil
}

// size reads a whole number from 1 to 1 << 20.
func size(fields map[string]any, name string) (int, error) {
	number, _ := fields[name].(json.Number)
	n, err := strconv.Atoi(string(number))
	if err != nil || n < 1 || n > 1<<20 {
		return 0, fmt.Errorf("config.json: %s is not a number from 1 to %d", name, 1<<20)
	}
	return n, nil
}

// appendCanonical appends a value as Python's json.dumps writes it with sort_keys=True and
// separators=(",", ":"), if its numbers are written as Python would.
func appendCanonical(b []byte, v any, depth int) ([]byte, error) {
	if depth > maxConfigDepth {
		return nil, fmt.Errorf("config.json: more than %d levels", maxConfigDepth)
	}
	var err error
	switch v := v.(type) {
	case nil:
		return append(b, "null"...), nil
	case bool:
		return strconv.AppendBool(b, v), nil
	case json.Number:
		return append(b, v...), nil
	case string:
		return appendString(b, v), nil
	case []any:
		b = append(b, '[')
		for i, e := range v {
			if i > 0 {
				b = append(b, ',')
			}
			if b, err = appendCanonical(b, e, depth+1); err != nil {
				return nil, err
			}
		}
		return append(b, ']'), nil
	case map[string]any:
		b = append(b, '{')
		for i, key := range slices.Sorted(maps.Keys(v)) {
			if i > 0 {
				b = append(b, ',')
			}
			b = append(appendString(b, key), ':')
			if b, err = appendCanonical(b, v[key], depth+1); err != nil {
				return nil, err
			}
		}
		return append(b, '}'), nil
	}
	return nil, fmt.Errorf("config.json: a value of type %T", v)
}

// appendString appends a string as Python's json.dumps writes it with ensure_ascii.
func appendString(b []byte, s string) []byte {
	b = append(b, '"')
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			b = append(b, '\\', byte(r))
		case r == '\n':
			b = append(b, `\n`...)
		case r == '\r':
			b = append(b, `\r`...)
		case r == '\t':
			b = append(b, `\t`...)
		case r == '\b':
			b = append(b, `\b`...)
		case r == '\f':
			b = append(b, `\f`...)
		case r >= ' ' && r <= '~':
			b = append(b, byte(r))
		case r > 0xffff:
			hi, lo := utf16.EncodeRune(r)
			b = fmt.Appendf(b, `\u%04x\u%04x`, hi, lo)
		default:
			b = fmt.Appendf(b, `\u%04x`, r)
		}
	}
	return append(b, '"')
}

// isFolder reports whether a name ends with a digest.
func isFolder(name string) bool {
	n := len(name) - 13
	return n > 0 && name[n] == '_' && isHex(name[n+1:]) && utf8.ValidString(name)
}

// parseRank splits the name of a rank's folder.
func parseRank(name string) (folder string, rank int, ok bool) {
	i := strings.LastIndex(name, "_r")
	if i < 0 || !isFolder(name[:i]) {
		return "", 0, false
	}
	rank, ok = number(name[i+2:], maxRanks-1)
	return name[:i], rank, ok
}

// number reads a decimal number as Python writes one.
func number(s string, most int) (int, bool) {
	n, err := strconv.Atoi(s)
	return n, err == nil && n >= 0 && n <= most && strconv.Itoa(n) == s
}

func isHex(s string) bool {
	for i := range len(s) {
		if c := s[i]; (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return true
}

// isOuter reports whether a name is that of a folder <hhh>.
func isOuter(name string) bool { return len(name) == 3 && isHex(name) }

// parseLeaf reads the name of a folder <hh>_g<group>.
func parseLeaf(name string) (group int, ok bool) {
	if len(name) < 5 || !isHex(name[:2]) || name[2:4] != "_g" {
		return 0, false
	}
	return number(name[4:], 1<<16-1)
}

// hashOf is a hash of at most maxHashBytes.
type hashOf struct {
	digits [maxHashBytes]byte
	length uint8
}

func (h *hashOf) hash() []byte { return h.digits[:h.length] }

func (h *hashOf) hex() string { return hex.EncodeToString(h.hash()) }

type fileKind uint8

const (
	foreign fileKind = iota
	blockFile
	temporary // of a writer, before its rename
)

// parseFile reads the name of a file in <outer>/<leaf>, whose names are right.
func parseFile(outer, leaf, name string) (h hashOf, kind fileKind) {
	digits, rest, ok := strings.Cut(name, ".bin")
	n := len(digits)
	if !ok || n < 6 || n%2 != 0 || n > 2*maxHashBytes || digits[:3] != outer || digits[3:5] != leaf[:2] || !isHex(digits) {
		return h, foreign
	}
	if _, err := hex.Decode(h.digits[:], []byte(digits)); err != nil {
		return hashOf{}, foreign
	}
	h.length = uint8(n / 2)
	if rest == "" {
		return h, blockFile
	}
	suffix, ok := strings.CutSuffix(rest, ".tmp")
	if !ok || suffix != "" && (suffix[0] != '_' || len(suffix) < 2 || strings.Trim(suffix[1:], "0123456789") != "") {
		return h, foreign
	}
	return h, temporary
}
