package tokenize

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
)

// LoadPretrained reads the folder of a model. It reads tokenizer.json, and applies what
// tokenizer_config.json says in memory, as engines do that load a model through
// transformers: added_tokens_decoder, the named special tokens, and the tokens that
// add_bos_token and add_eos_token put around a text. For example, only
// tokenizer_config.json has DeepSeek-V3's begin-of-sequence token.
//
// It does as transformers 4.57 (tokenization_utils_fast.py, and the files of the
// classes). It refuses a folder if transformers 5 would put other tokens around a text
// (tokenization_utils_tokenizers.py), if the tokenizer is Python code of the
// repository, or if there is only a tokenizer.model.
//
// Transformers 5 does not use all of tokenizer.json for some classes of tokenizers, and
// makes their parts itself. LoadPretrained does not notice that. If your engine runs
// with transformers 5, compare some ids with the engine's /tokenize; chatcheck does so
// for chats.
func LoadPretrained(dir string) (*BPE, error) {
	info, err := os.Stat(dir)
	switch {
	case err != nil:
		return nil, fmt.Errorf("tokenize: the folder of the model: %w", err)
	case !info.IsDir():
		return nil, fmt.Errorf("tokenize: %s is a file, not the folder of a model: %w", dir, fs.ErrInvalid)
	}
	c, err := readConfig(dir)
	if errors.Is(err, fs.ErrNotExist) {
		err = fmt.Errorf("%w: Load reads a tokenizer.json alone", err)
	}
	if err != nil {
		return nil, fmt.Errorf("tokenize: %w", err)
	}
	return load(dir, c)
}

// Files of older layouts, which transformers reads if the config has no
// added_tokens_decoder.
var olderFiles = []string{"added_tokens.json", "special_tokens_map.json"}

// source returns the tokenizer.json that path is or has, and the config beside it,
// nil if path is a file or there is none.
func source(path string) (c *config, file string, err error) {
	info, err := os.Stat(path)
	if err == nil && info.IsDir() {
		if _, err := fileIn(path, configName); !errors.Is(err, fs.ErrNotExist) {
			if c, err = readConfig(path); err != nil {
				return nil, "", err
			}
		}
	}
	if err == nil {
		path, err = tokenizerFile(path)
	}
	return c, path, err
}

const configName = "tokenizer_config.json"

func readConfig(dir string) (*config, error) {
	path, err := fileIn(dir, configName)
	if err != nil {
		return nil, err
	}
	raw, err := readWhole(path)
	if err != nil {
		return nil, err
	}
	c, err := parseConfig(raw)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if c.added == nil {
		for _, name := range olderFiles {
			if _, err := fileIn(dir, name); !errors.Is(err, fs.ErrNotExist) {
				return nil, fmt.Errorf("%s: %w", path, unsupported("a config without added_tokens_decoder beside %s", name))
			}
		}
	}
	return c, nil
}

// readWhole returns what is in a file, gzip'd or not, of at most maxConfig bytes.
func readWhole(path string) ([]byte, error) {
	f, err := open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var raw []byte
	err = unzipped(f, func(r io.Reader) error {
		raw, err = io.ReadAll(io.LimitReader(r, maxConfig+1))
		return err
	})
	if err == nil && len(raw) > maxConfig {
		err = malformed("longer than %d bytes", maxConfig)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return raw, nil
}

// maxConfig bounds a tokenizer_config.json; that of Gemma 3 has a million bytes.
const maxConfig = 16 << 20

// A config is what a tokenizer_config.json says about ids.
type config struct {
	sum            [sha256.Size]byte // of the file
	class          string
	addBOS, addEOS setting
	bos, eos       string
	addPrefixSpace setting
	explicit       bool // add_bos_token or add_eos_token is there, if only as null
	added          []configToken
	named          []namedToken
}

// identity tells configs apart; nil has one, too.
func (c *config) identity() (sum [sha256.Size]byte) {
	if c != nil {
		sum = c.sum
	}
	return sum
}

// A setting is a flag that may be absent.
type setting struct{ given, on bool }

func (s setting) or(on bool) bool { return s.given && s.on || !s.given && on }

// A namedToken is a special token that has a name, or is listed as one.
type namedToken struct {
	content string
	flags   bool // it is an object, with flags of its own
}

type configToken struct {
	id uint32
	addedToken
}

// Classes of transformers 4.57 that put a template of their own in the place of
// the file's post-processor, and whether it begins with the begin-of-sequence
// token if the config does not say.
var templateClasses = map[string]bool{
	"LlamaTokenizer": true, "CodeLlamaTokenizer": true, "GemmaTokenizer": true, "CohereTokenizer": true,
	"GPTNeoXTokenizer": false,
}

// Classes that keep the file's post-processor.
var plainClasses = []string{
	"PreTrainedTokenizer", "TokenizersBackend", "GPT2Tokenizer", "Qwen2Tokenizer", "BloomTokenizer",
	"CodeGenTokenizer", "RobertaTokenizer", "BartTokenizer", "WhisperTokenizer", "BlenderbotTokenizer",
}

func parseConfig(raw []byte) (*config, error) {
	if !json.Valid(raw) {
		return nil, malformed("not JSON, or cut off")
	}
	o, err := parseObject("the file", raw[afterSpace(raw, 0):])
	if err != nil {
		return nil, err
	}
	if !o.absent("auto_map") {
		return nil, unsupported("a tokenizer that is Python code of the repository (auto_map)")
	}
	c := &config{sum: sha256.Sum256(raw)}
	if o.absent("tokenizer_class") {
		return nil, unsupported("a config without tokenizer_class (an engine then chooses the class by the type of the model)")
	}
	if c.class, err = o.text("tokenizer_class"); err != nil {
		return nil, err
	}
	if n := len(c.class) - len("Fast"); n > 0 && c.class[n:] == "Fast" {
		c.class = c.class[:n]
	}
	if _, ok := templateClasses[c.class]; !ok && !slices.Contains(plainClasses, c.class) {
		return nil, unsupported("tokenizer_class %.60q", c.class)
	}
	var splitSpecial, fromSlow setting
	for _, f := range []struct {
		name string
		to   *setting
	}{
		{"add_bos_token", &c.addBOS}, {"add_eos_token", &c.addEOS},
		{"add_prefix_space", &c.addPrefixSpace}, {"split_special_tokens", &splitSpecial}, {"from_slow", &fromSlow},
	} {
		if o.absent(f.name) {
			continue
		}
		f.to.given = true
		if f.to.on, err = o.flag(f.name); err != nil {
			return nil, err
		}
	}
	for _, name := range []string{"add_bos_token", "add_eos_token"} {
		if _, ok := o.values[name]; ok {
			c.explicit = true
		}
	}
	if splitSpecial.on {
		return nil, unsupported("split_special_tokens")
	}
	if fromSlow.on || c.class == "LlamaTokenizer" && c.addPrefixSpace.given {
		return nil, unsupported("class %s with from_slow or add_prefix_space, which is made from tokenizer.model,", c.class)
	}
	if err := c.parseNamed(o); err != nil {
		return nil, err
	}
	return c, c.parseAdded(o)
}

// parseNamed reads the special tokens that have a name.
func (c *config) parseNamed(o object) error {
	for _, name := range []string{"bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"} {
		if o.absent(name) {
			continue
		}
		t, err := parseNamedToken(o.where+" "+name, o.values[name])
		if err != nil {
			return err
		}
		switch name {
		case "bos_token":
			c.bos = t.content
		case "eos_token":
			c.eos = t.content
		}
		c.named = append(c.named, t)
	}
	return c.parseFurther(o)
}

// parseFurther reads the special tokens that have no name, or one of the model's
// own: a list in transformers 4, and a list or an object in 5.
func (c *config) parseFurther(o object) error {
	for _, name := range []string{"additional_special_tokens", "extra_special_tokens"} {
		if o.absent(name) {
			continue
		}
		add := func(raw []byte) error {
			t, err := parseNamedToken(o.where+" "+name, raw)
			c.named = append(c.named, t)
			return err
		}
		if raw := o.values[name]; raw[0] == '{' {
			if err := eachMember(raw, func(_, value []byte) error { return add(value) }); err != nil {
				return err
			}
			continue
		}
		items, err := o.list(name, maxAdded)
		if err != nil {
			return err
		}
		for _, item := range items {
			if err := add(item); err != nil {
				return err
			}
		}
	}
	return nil
}

// parseNamedToken reads a token that is a string or an object with a content.
func parseNamedToken(where string, raw []byte) (namedToken, error) {
	if len(raw) > 0 && raw[0] == '"' {
		return namedToken{content: string(unquote(raw))}, nil
	}
	o, err := parseObject(where, raw)
	if err != nil {
		return namedToken{}, err
	}
	content, err := o.text("content")
	return namedToken{content, true}, err
}

func (c *config) parseAdded(o object) error {
	const name = "added_tokens_decoder"
	if o.absent(name) {
		return nil
	}
	where := o.where + " " + name
	raw := o.values[name]
	if raw[0] != '{' {
		return malformed("%s is not an object", where)
	}
	seen := map[uint32]bool{}
	c.added = []configToken{}
	err := eachMember(raw, func(key, value []byte) error {
		if len(c.added) == maxAdded {
			return malformed("%s has more than %d tokens", where, maxAdded)
		}
		id, ok := parseID(unquote(key), maxVocab)
		if !ok || len(key) > len(`"0"`) && key[1] == '0' {
			return malformed("%s: %.20s is not the id of a token", where, key)
		}
		if seen[id] {
			return malformed("%s has id %d twice", where, id)
		}
		seen[id] = true
		token, err := parseObject(where, value)
		if err != nil {
			return err
		}
		t, err := parseAddedToken(token, "__type")
		if err != nil {
			return err
		}
		c.added = append(c.added, configToken{id, t})
		return nil
	})
	slices.SortFunc(c.added, func(a, b configToken) int { return int(a.id) - int(b.id) })
	return err
}

// apply changes t, which is complete but for its added tokens, and set, which has
// those of the tokenizer.json.
func (c *config) apply(t *BPE, file object, set *addedSet) error {
	set.resume()
	for _, a := range c.added {
		if err := set.add(a.addedToken, a.id); err != nil {
			return err
		}
	}
	for _, t := range c.named {
		if _, ok := set.byContent[t.content]; ok || t.content == "" {
			continue
		}
		if t.flags {
			return unsupported("token %.60q with flags that is in no list of added tokens", t.content)
		}
		if err := set.put(addedToken{content: t.content, id: set.place(t.content)}); err != nil {
			return err
		}
	}
	if err := c.checkPrefixSpace(file); err != nil {
		return err
	}
	return c.applyTemplate(t, !file.absent("post_processor"), set)
}

// checkPrefixSpace refuses a prefix space on which the two files differ: 4.57
// takes the config's, which is false if it is absent, and 5 the tokenizer.json's.
func (c *config) checkPrefixSpace(file object) error {
	if file.absent("pre_tokenizer") {
		return nil
	}
	o, err := parseComponent("pre_tokenizer", file.values["pre_tokenizer"])
	if err != nil || o.kind != "ByteLevel" {
		return err
	}
	on, err := o.flag("add_prefix_space")
	if err == nil && on != c.addPrefixSpace.or(false) {
		err = unsupported("add_prefix_space %t beside a tokenizer.json with %t", c.addPrefixSpace.or(false), on)
	}
	return err
}

func (c *config) applyTemplate(t *BPE, hasPostProcessor bool, set *addedSet) error {
	if bos, ok := templateClasses[c.class]; ok && (c.addBOS.or(bos) && c.bos == "" || c.addEOS.or(false) && c.eos == "") {
		return unsupported("class %s that adds a token which the config does not name", c.class)
	}
	around := func(bos, eos bool) (before, after []uint32) {
		if bos && c.bos != "" {
			before = []uint32{set.place(c.bos)}
		}
		if eos && c.eos != "" {
			after = []uint32{set.place(c.eos)}
		}
		return before, after
	}
	before4, after4 := t.before, t.after
	if bos, ok := templateClasses[c.class]; ok {
		before4, after4 = around(c.addBOS.or(bos), c.addEOS.or(false))
	}
	before5, after5 := t.before, t.after
	if c.explicit || !hasPostProcessor {
		before5, after5 = around(c.addBOS.or(false), c.addEOS.or(false))
	}
	if !slices.Equal(before4, before5) || !slices.Equal(after4, after5) {
		return unsupported("class %s, add_bos_token and add_eos_token, which transformers 4 reads as %d ... %d and 5 as %d ... %d,",
			c.class, before4, after4, before5, after5)
	}
	t.before, t.after = before4, after4
	return nil
}
