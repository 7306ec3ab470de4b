// LoadPretrained is not Load. An engine has transformers' reading of two files, and the golden
// ids of the official library are about one. The version of the engine determines that of
// transformers, at one place for tokenizer and chats. A pipeline that a class makes replaces
// the file's as JSON, and is parsed like it: nothing else can differ. classes.go has the rule
// for the class.

package tokenize

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/kvindex/kvindex/internal/vllmversion"
)

// LoadPretrained reads the folder of a model. It reads tokenizer.json, and applies
// tokenizer_config.json in memory, as engines do that load a model through transformers:
// added_tokens_decoder, the named special tokens, and the tokens that add_bos_token and
// add_eos_token put around a text. For example, only tokenizer_config.json has DeepSeek-V3's
// begin-of-sequence token. Folders of 2023 have added_tokens.json and special_tokens_map.json
// in place of added_tokens_decoder.
//
// engine is at most one version of vLLM, written as in chat.Options.Engine: give both the
// same. Without one it is vLLM's main. From vLLM 0.19.1 on, LoadPretrained does as
// transformers 5, before as 4.57. Transformers 5 makes the normalizer and the pre-tokenizer of
// some classes itself and does not read those of tokenizer.json; model_type of config.json
// decides. LoadPretrained makes the same ones. If it cannot, or if the result depends on an
// unknown release of transformers, the error names the class, the type and both
// pre-tokenizers. Without config.json, tokenizer.json is read as it is, unless its
// pre-tokenizer has all steps of the class's own and more: then the class counts.
//
// LoadPretrained refuses a folder if transformers 4.57 and 5 would put different tokens
// around a text, if the tokenizer is Python code of the repository, or if there is only a
// tokenizer.model. If there is a tekken.json and no tokenizer.json, it does as Load.
func LoadPretrained(dir string, engine ...string) (*BPE, error) {
	info, err := os.Stat(dir)
	switch {
	case len(engine) > 1:
		return nil, fmt.Errorf("tokenize: %d engines for one tokenizer: %w", len(engine), fs.ErrInvalid)
	case dir == "":
		return nil, fmt.Errorf("tokenize: the name of the folder of the model is empty: %w", fs.ErrInvalid)
	case err != nil:
		return nil, fmt.Errorf("tokenize: the folder of the model: %w", err)
	case !info.IsDir():
		return nil, fmt.Errorf("tokenize: %s is a file, not the folder of a model: %w", dir, fs.ErrInvalid)
	}
	if hasTekken(dir) {
		if _, err := vllmversion.Parse(strings.Join(engine, "")); err != nil {
			return nil, fmt.Errorf("tokenize: %w", err)
		}
		return load(dir, nil)
	}
	c, err := readConfig(dir, strings.Join(engine, ""))
	if _, missing := fileIn(dir, configName); errors.Is(missing, fs.ErrNotExist) {
		if _, err = tokenizerFile(dir); err != nil {
			err = fmt.Errorf("no tokenizer files: no %s, and %w", configName, err)
		} else {
			err = fmt.Errorf("%w: tokenize.Load reads a tokenizer.json alone", missing)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("tokenize: %w", err)
	}
	return load(dir, c)
}

// source returns the tokenizer.json at path, and the config beside it, nil if path is a file
// or there is none.
func source(path, engine string) (c *config, file string, err error) {
	info, err := os.Stat(path)
	if err == nil && info.IsDir() && !hasTekken(path) {
		if _, err := fileIn(path, configName); !errors.Is(err, fs.ErrNotExist) {
			if c, err = readConfig(path, engine); err != nil {
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

func readConfig(dir, engine string) (*config, error) {
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
	if c.engine, err = vllmversion.Parse(engine); err != nil {
		return nil, err
	}
	for _, f := range []struct {
		name  string
		parse func(o object) error
	}{
		{"special_tokens_map.json", c.parseMap}, {"added_tokens.json", c.parseOlder}, {modelName, c.parseType},
	} {
		if c.added != nil && f.name != modelName {
			continue
		}
		if err := c.readBeside(dir, f.name, f.parse); err != nil {
			return nil, err
		}
	}
	c.sum = identityOf(configName, c.sum[:], []byte(strings.Join(c.classNames(), " ")), fmt.Append(nil, c.noType))
	return c, nil
}

// modelName is the config of the model.
const modelName = "config.json"

// readBeside reads another file of the folder into c, if it is there.
func (c *config) readBeside(dir, name string, parse func(o object) error) error {
	path, err := fileIn(dir, name)
	if errors.Is(err, fs.ErrNotExist) {
		c.noType = c.noType || name == modelName
		return nil
	}
	if err != nil {
		return err
	}
	raw, err := readWhole(path)
	if name == modelName {
		dropConstants(raw)
	}
	if err == nil {
		err = checkJSON(raw)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	o, err := parseObject("the file", raw[afterSpace(raw, 0):])
	if err == nil {
		err = parse(o)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if name != modelName { // only its type counts
		c.sum = identityOf(name, c.sum[:], raw)
	}
	return nil
}

// dropConstants puts 0 in the place of the numbers that Python's json has and JSON has not:
// NaN, Infinity and -Infinity. The configs of Mamba's models have them.
func dropConstants(raw []byte) {
	quoted := false
	for i := 0; i < len(raw); i++ {
		switch {
		case raw[i] == '"':
			quoted = !quoted
		case quoted:
			if raw[i] == '\\' {
				i++
			}
		case raw[i] == 'N' || raw[i] == 'I':
			for _, name := range []string{"NaN", "Infinity"} {
				if bytes.HasPrefix(raw[i:], []byte(name)) {
					raw[i] = '0'
					for j := 1; j < len(name); j++ {
						raw[i+j] = ' '
					}
				}
			}
		}
	}
}

// parseType reads the config of the model.
func (c *config) parseType(o object) (err error) {
	if !o.absent("model_type") {
		c.modelType, err = o.text("model_type")
	}
	return err
}

// parseMap reads a special_tokens_map.json: its names go before those of the config
// (transformers 4.57 and 5, _from_pretrained in tokenization_utils_base.py).
func (c *config) parseMap(o object) error { return c.parseNamed(o) }

// parseOlder reads an added_tokens.json, which has ids by content. A token is special if
// it is named. Transformers adds those whose ids no added token of tokenizer.json has, in
// the order of their ids (4.57 and 5, _from_pretrained in tokenization_utils_base.py, and
// the end of __init__ in tokenization_utils_fast.py and tokenization_utils_tokenizers.py).
func (c *config) parseOlder(o object) error {
	for content, raw := range o.values {
		id, ok := parseID(raw, maxVocab)
		if !ok {
			return malformed("token %.60q has id %.20s", content, raw)
		}
		if len(content) > maxContent {
			return malformed("a token has %d bytes, more than %d", len(content), maxContent)
		}
		special := slices.ContainsFunc(c.named, func(t namedToken) bool { return t.content == content })
		c.older = append(c.older, configToken{id, addedToken{content: content, normalized: !special}})
	}
	slices.SortFunc(c.older, func(a, b configToken) int { return cmp.Or(int(a.id)-int(b.id), strings.Compare(a.content, b.content)) })
	return nil
}

// readWhole returns the content of a file, gzip'd or not, of at most maxConfig bytes.
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

// A config has the parts of the files beside a tokenizer.json that affect ids, and the engine.
type config struct {
	sum            [sha256.Size]byte // of all that ids depend on but the tokenizer.json
	class          string
	addBOS, addEOS setting
	bos, eos, unk  string
	addPrefixSpace setting
	legacy         setting
	explicit       bool          // add_bos_token or add_eos_token is there, if only as null
	added          []configToken // nil without added_tokens_decoder
	older          []configToken // of added_tokens.json, in the order of their ids
	named          []namedToken

	engine    vllmversion.Version
	modelType string // "" for none
	noType    bool   // because there is no config.json
}

// identity returns a digest of a config; nil has one, too.
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
	name    string // "" if it is only listed
	content string
	flags   bool // it is an object, with flags of its own
}

type configToken struct {
	id uint32
	addedToken
}

// Classes of transformers 4.57 that replace the file's post-processor by a template of their
// own, and whether it begins with the begin-of-sequence token by default.
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
	if err := checkJSON(raw); err != nil {
		return nil, err
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
		{"legacy", &c.legacy},
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
		switch t.name = name; name {
		case "bos_token":
			c.bos = t.content
		case "eos_token":
			c.eos = t.content
		case "unk_token":
			c.unk = t.content
		}
		if i := slices.IndexFunc(c.named, func(of namedToken) bool { return of.name == name }); i >= 0 {
			c.named[i] = t
		} else {
			c.named = append(c.named, t)
		}
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
	return namedToken{content: content, flags: true}, err
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

// apply changes t, which is complete but for its added tokens, and set, which has those of the
// tokenizer.json.
func (c *config) apply(t *BPE, file object, set *addedSet) error {
	set.resume()
	added := c.added
	for _, a := range c.older {
		if _, ok := set.byID[a.id]; !ok {
			added = append(added, a)
		}
	}
	for _, a := range added {
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

// checkPrefixSpace refuses a prefix space on which the two files differ: 4.57 uses the
// config's, false if it is absent, and 5 the tokenizer.json's.
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
