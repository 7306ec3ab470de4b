package janitor

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"strings"
	"testing"
)

// configText is a config.json of vLLM: json.dump with indent=2 and sort_keys.
func configText(model string, tp, pp, pcp, dcp int) string {
	name, _ := json.Marshal(model)
	return fmt.Sprintf(`{
  "blocks_per_file": 1,
  "dcp_size": %d,
  "dtype": "bfloat16",
  "inference_engine": "vllm",
  "kv_cache_groups": [
    {
      "layer_names": [
        "model.layers.0.self_attn.attn"
      ],
      "tokens_per_block": 16
    }
  ],
  "model_name": %s,
  "parallel_agnostic": false,
  "pcp_size": %d,
  "pp_size": %d,
  "tokens_per_hash": 16,
  "tp_size": %d
}`, dcp, name, pcp, pp, tp)
}

func TestConfig(t *testing.T) {
	for _, c := range []struct {
		name, text string
		want       Config
		folder     string // by Python's hashlib and json; "": an error
		err        string
	}{
		{name: "as written", text: configText("meta-llama/Llama-3.1-8B", 2, 3, 1, 2),
			want: Config{Model: "meta-llama/Llama-3.1-8B", TokensPerHash: 16, BlocksPerFile: 1, Ranks: 6}, folder: "meta-llama_Llama-3.1-8B_251ab55595ee"},
		{name: "another order, older names", text: `{"tp_size":1,"pp_size":1,"pcp_size":1,"dcp_size":1,"model_name":"m","hash_block_size":32,"gpu_blocks_per_file":4,"a":["é😀\u007f\u0001\"\\/",null,true,-1500.0]}`,
			want: Config{Model: "m", TokensPerHash: 32, BlocksPerFile: 4, Ranks: 1}, folder: "m_c15f99a86085"},
		{name: "not an object", text: `[]`, err: "config.json: json: cannot unmarshal array"},
		{name: "two", text: configText("m", 1, 1, 1, 1) + "{}", err: "more follows the object"},
		{name: "cut", text: configText("m", 1, 1, 1, 1)[:100], err: "unexpected EOF"},
		{name: "no model", text: `{"model_name":1}`, err: "model_name is not a name"},
		{name: "no size", text: `{"model_name":"m","tokens_per_hash":16,"blocks_per_file":1,"tp_size":1.5}`, err: "tp_size is not a number from 1 to"},
		{name: "zero", text: configText("m", 0, 1, 1, 1), err: "tp_size is not a number from 1 to"},
		{name: "many ranks", text: configText("m", 8, 9, 1, 1), err: "more than 64 ranks"},
		{name: "deep", text: strings.TrimSuffix(configText("m", 1, 1, 1, 1), "}") + `,"a":` + strings.Repeat("[", 40) + strings.Repeat("]", 40) + "}", err: "more than 32 levels"},
		{name: "large", text: strings.Repeat(" ", maxConfigBytes+1), err: "more than 4194304 bytes"},
	} {
		cfg, folder, err := parseConfig([]byte(c.text))
		if c.err != "" {
			if err == nil || !strings.Contains(err.Error(), c.err) {
				t.Errorf("%s: error %v, want %q", c.name, err, c.err)
			}
			continue
		}
		if err != nil || cfg != c.want || folder != c.folder {
			t.Errorf("%s: %+v, %q, %v; want %+v, %q", c.name, cfg, folder, err, c.want, c.folder)
		}
	}
}

// TestConfigAgainstPython compares digests with Python's for random configs, written by json.dump
// as in vLLM.
func TestConfigAgainstPython(t *testing.T) {
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("no python3: digests are compared with the recorded ones of TestConfig alone")
	}
	r := rand.New(rand.NewPCG(1, 2))
	word := func() string {
		letters := []rune("ab/_.-\"\\\n\t\b\f\r\x1f\x7fé\u2028\ufffd\uffff😀\U0010ffff")
		s := make([]rune, 1+r.IntN(8))
		for i := range s {
			s[i] = letters[r.IntN(len(letters))]
		}
		return string(s)
	}
	var configs []map[string]any
	for range 200 {
		c := map[string]any{"model_name": word(), "tokens_per_hash": 1 + r.IntN(99), "blocks_per_file": 1 + r.IntN(9),
			"tp_size": 1 + r.IntN(4), "pp_size": 1 + r.IntN(4), "pcp_size": 1, "dcp_size": 1 + r.IntN(4)}
		for range r.IntN(5) {
			c[word()] = []any{word(), map[string]any{word(): r.IntN(9), word(): nil}, true}
		}
		configs = append(configs, c)
	}
	in, err := json.Marshal(configs)
	must(t, err)
	cmd := exec.Command(python, "-c", `
import hashlib, json, sys
out = []
for c in json.load(sys.stdin):
    line = json.dumps(c, sort_keys=True, separators=(",", ":"))
    name = c["model_name"].replace("/", "_") + "_" + hashlib.sha256(line.encode()).hexdigest()[:12]
    out.append([json.dumps(c, indent=2, sort_keys=True), name])
json.dump(out, sys.stdout)`)
	cmd.Stdin = strings.NewReader(string(in))
	out, err := cmd.Output()
	must(t, err)
	var want [][2]string
	if err := json.Unmarshal(out, &want); err != nil || len(want) != len(configs) {
		t.Fatal(len(want), err)
	}
	for _, w := range want {
		if _, folder, err := parseConfig([]byte(w[0])); err != nil || folder != w[1] {
			t.Errorf("%s: %q, %v; want %q", w[0], folder, err, w[1])
		}
	}
}

func FuzzConfig(f *testing.F) {
	f.Add([]byte(configText("a/b", 1, 1, 1, 1)))
	f.Add([]byte(`{"model_name":"\ud800","tp_size":1}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		cfg, folder, err := parseConfig(data)
		if err != nil {
			if folder != "" || cfg != (Config{}) {
				t.Errorf("%+v, %q and the error %v", cfg, folder, err)
			}
			return
		}
		if cfg.Ranks < 1 || cfg.Ranks > maxRanks || cfg.Model == "" || cfg.BlocksPerFile < 1 || cfg.TokensPerHash < 1 || strings.Contains(folder, "/") {
			t.Errorf("%+v, %q", cfg, folder)
		}
	})
}

func TestNames(t *testing.T) {
	const digest = "_0123456789ab"
	for name, want := range map[string]int{
		"m" + digest + "_r0": 0, "m_r7" + digest + "_r12": 12, "m" + digest + "_r0" + digest + "_r1": 1, "m" + digest + "_r63": 63,
		"m" + digest: -1, "m" + digest + "_r": -1, "m" + digest + "_r64": -1, "m" + digest + "_r01": -1, "m" + digest + "_r+1": -1, "m" + digest + "_r-1": -1,
		"m_r0": -1, digest + "_r0": -1, "m_0123456789aB_r0": -1, "m_0123456789a_r0": -1, "": -1,
	} {
		folder, rank, ok := parseRank(name)
		if ok != (want >= 0) || ok && (rank != want || folder+"_r"+fmt.Sprint(rank) != name) {
			t.Errorf("parseRank(%q) = %q, %d, %v", name, folder, rank, ok)
		}
	}
	for name, want := range map[string]int{
		"ab_g0": 0, "00_g65535": 65535, "ab_g65536": -1, "ab_g": -1, "ab_g00": -1, "abg0": -1, "a_g0": -1, "AB_g0": -1, "abc_g0": -1, "": -1,
	} {
		if group, ok := parseLeaf(name); ok != (want >= 0) || ok && group != want {
			t.Errorf("parseLeaf(%q) = %d, %v", name, group, ok)
		}
	}
	long := "abcde" + strings.Repeat("0", 59)
	for name, want := range map[string]fileKind{
		long + ".bin": blockFile, "abcdef.bin": blockFile, "abcde0f1.bin": blockFile,
		long + ".bin_123.tmp": temporary, "abcdef.bin.tmp": temporary,
		long + "00.bin": foreign, "abcdefa.bin": foreign, "abcd.bin": foreign, "abcdEf.bin": foreign, "bbcdef.bin": foreign, "abcfef.bin": foreign,
		"abcdef": foreign, "abcdef.bin_.tmp": foreign, "abcdef.bin_1x.tmp": foreign, "abcdef.bin1.tmp": foreign, "abcdef.bin.bin": foreign, ".bin": foreign, "": foreign,
	} {
		h, kind := parseFile("abc", "de_g0", name)
		if kind != want || kind == blockFile && h.hex()+".bin" != name {
			t.Errorf("parseFile(%q) = %q, %d; want %d", name, h.hex(), kind, want)
		}
	}
}
