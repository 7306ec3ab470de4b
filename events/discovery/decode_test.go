package discovery_test

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/kvindex/kvindex/events"
	"github.com/kvindex/kvindex/events/discovery"
)

func TestDecode(t *testing.T) {
	pods, err := discovery.Decode([]byte(` [
		{"id": "a", "model": "m", "host": "10.0.0.1", "port": 1, "replayPort": 2, "tiersPort": 4, "ranks": 3, "topic": "kv@", "engine": "none", "uid": "u", "labels": {"zone": "x"}},
		{"labels": null, "id": "b"},
		{}
	]` + "\n"))
	want := []events.Pod{
		{ID: "a", Model: "m", Host: "10.0.0.1", Port: 1, ReplayPort: 2, TiersPort: 4, Ranks: 3, Topic: "kv@", Engine: events.EngineNone, UID: "u", Labels: map[string]string{"zone": "x"}},
		{ID: "b"},
		{},
	}
	if err != nil || !reflect.DeepEqual(pods, want) {
		t.Fatalf("%+v, %v", pods, err)
	}
	if pods, err := discovery.Decode([]byte("[]")); err != nil || pods == nil || len(pods) != 0 {
		t.Errorf("the list without pods: %v, %v", pods, err)
	}
}

// TestDecodeErrors: an error names its line, its position, its pod and its key.
func TestDecodeErrors(t *testing.T) {
	for _, c := range []struct{ content, want string }{
		{"", "it is empty; a list without pods is []"},
		{" \n\t", "it is empty; a list without pods is []"},
		{"\ufeff[]", "it begins with a byte order mark (efbbbf): save it as UTF-8 without BOM"},
		{"\xff\xfe[\x00]\x00", "it begins with a byte order mark (fffe): save it as UTF-8 without BOM"},
		{`null`, "line 1, byte 4: the file is not an array of pods"},
		{`{"id": "a"}`, "line 1, byte 1: the file is not an array of pods"},
		{`[{"id": "a"}`, "line 1, byte 12: unexpected end of JSON input"},
		{"[{\"id\": \"a\"},\n", "line 2, byte 14: unexpected end of JSON input"},
		{"[]\n]", "line 2, byte 4: invalid character ']' after top-level value"},
		{`[{"id": "a"}] [{"id": "b"}]`, "line 1, byte 15: invalid character '[' after top-level value"},
		{`[{"id": "a"},]`, "line 1, byte 14: invalid character ']' looking for beginning of value"},
		{"[\n{\"id\": \"a\"},\n7]", "line 3, byte 16: pod 2 is not an object"},
		{`[null]`, "line 1, byte 5: pod 1 is not an object"},
		{`[[]]`, "line 1, byte 2: pod 1 is not an object"},
		{"[{\"id\": \"a\"},\n {\"id\": \"b\", \"prot\": 5557}]", `line 2, byte 33: pod 2 ("b"): the key "prot" is unknown; the keys are id, model, host, port, replayPort, tiersPort, ranks, topic, engine, uid, labels`},
		{`[{"ID": "a"}]`, `line 1, byte 6: pod 1: the key "ID" is unknown; the keys are`},
		{`[{"": "a"}]`, `line 1, byte 4: pod 1: the key "" is unknown`},
		{`[{"id": "a", "host": "x", "host": "y"}]`, `line 1, byte 32: pod 1 ("a"): the key "host" is repeated`},
		{`[{"id": "a", "port": "5557"}]`, `line 1, byte 27: pod 1 ("a"): the key "port" has a JSON string where a whole number is needed`},
		{`[{"port": 1.5}]`, `the key "port" has a JSON number 1.5 where a whole number is needed`},
		{`[{"port": 123456789012345678901}]`, `the key "port" has a JSON number 123456789012345678901 where a whole number is needed`},
		{`[{"model": ["m"]}]`, `the key "model" has a JSON array where a string is needed`},
		{`[{"labels": ["m"]}]`, `the key "labels" has a JSON array where an object of strings is needed`},
		{`[{"labels": {"zone": 7}}]`, `the key "labels" has a JSON number where a string is needed`},
		{`[{"engine": "zqm"}]`, `line 1, byte 17: pod 1: the key "engine": unknown engine "zqm", known are zmq and none`},
		{`[{"engine": 1}]`, `the key "engine" has a JSON number where a string is needed`},
		{"[{\"id\":\n\"a\xff\"}]", "line 2, byte 10: the text is not UTF-8"},
		{strings.Repeat("[", 20000), "exceeded max depth"},
		{"[" + strings.Repeat("{},", discovery.MaxFilePods) + "{}]", "there are more than 65536 pods"},
	} {
		pods, err := discovery.Decode([]byte(c.content))
		if err == nil || !strings.Contains(err.Error(), c.want) || pods != nil {
			t.Errorf("%.60q: %d pods and %v, want %s", c.content, len(pods), err, c.want)
		}
	}
}

// FuzzDecode: an accepted list decodes as with encoding/json, and again after json.Marshal. A
// rejected one has no pods.
func FuzzDecode(f *testing.F) {
	for _, seed := range []string{
		`[]`, `[{}]`, `[{"id": "a", "model": "m", "host": "h", "port": 5557, "labels": {"a": "b"}}]`, `[{"engine": "none"}]`, `[{"id": "a", "id": "b"}]`, `[{"Id": ""}]`, `[null]`, `{"id": 1}`, `[]]`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		pods, err := discovery.Decode(data)
		if err != nil {
			if pods != nil {
				t.Fatalf("%d pods with %v", len(pods), err)
			}
			return
		}
		var other []events.Pod
		if err := json.Unmarshal(data, &other); err != nil || fmt.Sprint(other) != fmt.Sprint(pods) {
			t.Fatalf("%v, and encoding/json has %v, %v", pods, other, err)
		}
		written, err := json.Marshal(pods)
		must(t, err)
		again, err := discovery.Decode(written)
		if err != nil || fmt.Sprint(again) != fmt.Sprint(pods) {
			t.Fatalf("%s: %v, %v; it was %v", written, again, err, pods)
		}
	})
}
