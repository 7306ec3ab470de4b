package load_test

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/kvindex/kvindex/route/load"
)

func TestRead(t *testing.T) {
	for _, c := range []struct {
		file  string
		ranks int
		want  []load.Report
	}{
		{"vllm", 0, []load.Report{{Waiting: 12, Running: 37}}},
		{"vllm", 2, []load.Report{{Waiting: 12, Running: 37}}},
		{"vllm-ranks", 1, []load.Report{{Waiting: 5, Running: 14}}},
		{"vllm-ranks", 2, []load.Report{{0, 0, 8}, {1, 5, 6}}},
		{"vllm-0.8", 0, []load.Report{{Waiting: 1, Running: 2}}},
		{"sglang", 0, []load.Report{{Waiting: 2021, Running: 9}}},
		{"sglang-ranks", 0, []load.Report{{Waiting: 4, Running: 6}}},
		{"sglang-ranks", 8, []load.Report{{0, 3, 4}, {1, 1, 2}}},
	} {
		page, err := os.Open("testdata/" + c.file + ".txt")
		if err != nil {
			t.Fatal(err)
		}
		got, err := load.Read(page, c.ranks)
		page.Close()
		if err != nil || !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s, %d ranks: %v, %v, want %v", c.file, c.ranks, got, err, c.want)
		}
	}
}

// valid is a page of one rank, without labels.
const valid = "vllm:num_requests_waiting 1\nvllm:num_requests_running 2\n"

func TestForms(t *testing.T) {
	want := []load.Report{{Waiting: 1, Running: 2}}
	for _, page := range []string{
		valid,
		strings.ReplaceAll(valid, "\n", "\r\n"),
		strings.ReplaceAll(valid, " ", "\t"),
		strings.ReplaceAll(valid, " ", "{} "),
		strings.ReplaceAll(valid, " ", `{engine=""}`),
		strings.ReplaceAll(valid, " ", ` { engine = "0" , } `),
		strings.ReplaceAll(valid, " ", `{a="\"}, engine=\"7",engine="0",b="{\\"} `),
		strings.ReplaceAll(valid, "\n", " 1700000000000\n"),
		strings.Replace(valid, " 1\n", " 1e0\n", 1),
		"# vllm:num_requests_waiting is broken {\n\n" + valid + "other{ 7\nvllm:num_requests_waiting_by_reason{engine=\"x\"} NaN\nlonely\n",
	} {
		if got, err := load.Read(strings.NewReader(page), 0); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%q: %v, %v", page, got, err)
		}
	}
}

func TestErrors(t *testing.T) {
	waits := func(line string) string { return strings.Replace(valid, "vllm:num_requests_waiting 1", line, 1) }
	for _, c := range []struct{ page, want string }{
		{"", "no figures"},
		{"<html>\n", "no figures"},
		{valid[:len(valid)-1], "within a line"},
		{waits(""), "rank 0 has no vllm:num_requests_waiting"},
		{waits(`vllm:num_requests_waiting{engine="1"} 1`), "rank 0 has no vllm:num_requests_waiting"},
		{valid + "vllm:num_requests_waiting{engine=\"1\"} 1\n", "rank 1 has no vllm:num_requests_running"},
		{valid + "sglang:num_queue_reqs 1\n", "line 3: the page has figures of vllm"},
		{waits("vllm:num_requests_waiting{} "), "line 1: vllm:num_requests_waiting: it has no value"},
		{waits("vllm:num_requests_waiting -1"), `"-1"`},
		{waits("vllm:num_requests_waiting 1.5"), `"1.5"`},
		{waits("vllm:num_requests_waiting 1048577"), `"1048577"`},
		{waits("vllm:num_requests_waiting +Inf"), `"+Inf"`},
		{waits("vllm:num_requests_waiting NaN"), `"NaN"`},
		{waits("vllm:num_requests_waiting one"), `"one"`},
		{waits(`vllm:num_requests_waiting{engine="one"} 1`), `engine is "one"`},
		{waits(`vllm:num_requests_waiting{engine="-1"} 1`), `engine is "-1"`},
		{waits(`vllm:num_requests_waiting{engine="1024"} 1`), `engine is "1024"`},
		{waits(`vllm:num_requests_waiting{engine} 1`), "no value"},
		{waits(`vllm:num_requests_waiting{engine="0" 1`), "no end"},
		{waits(`vllm:num_requests_waiting{engine="0`), "no end"},
		{waits(`vllm:num_requests_waiting{engine="0\`), "no end"},
		{waits(`vllm:num_requests_waiting{`), "no end"},
	} {
		if got, err := load.Read(strings.NewReader(c.page), 0); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: %v, %v, want %q", c.page, got, err, c.want)
		}
	}
	page := strings.ReplaceAll(valid, " ", `{engine="4"} `)
	if got, err := load.Read(strings.NewReader(page), 4); err == nil || !strings.Contains(err.Error(), "rank 4, of 4 ranks") {
		t.Error(got, err)
	}
	broken := errors.New("broken")
	if _, err := load.Read(io.MultiReader(strings.NewReader(valid), iotest.ErrReader(broken)), 0); !errors.Is(err, broken) {
		t.Error(err)
	}
	long := io.MultiReader(strings.NewReader(strings.Repeat("#\n", 8<<20)), strings.NewReader(valid))
	if _, err := load.Read(long, 0); err == nil || !strings.Contains(err.Error(), "longer") {
		t.Error(err)
	}
}

// TestReadAgainstPlain reads pages of random figures in a random order.
func TestReadAgainstPlain(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	for range 500 {
		names, label := []string{"vllm:num_requests_waiting", "vllm:num_requests_running"}, "engine"
		if r.IntN(2) == 0 {
			names, label = []string{"sglang:num_queue_reqs", "sglang:num_running_reqs"}, "dp_rank"
		}
		ranks := 1 + r.IntN(5)
		want := make([]load.Report, ranks)
		all := load.Report{}
		var lines []string
		for rank := range want {
			w := load.Report{Rank: rank}
			for range 1 + r.IntN(3) { // several processes report one rank
				s := load.Report{Waiting: r.IntN(50), Running: r.IntN(50)}
				w.Waiting, w.Running = max(w.Waiting, s.Waiting), max(w.Running, s.Running)
				for i, v := range []int{s.Waiting, s.Running} {
					of := []string{fmt.Sprintf(`%s="%d"`, label, rank), fmt.Sprintf(`model_name="a\\\"%d"`, r.IntN(9)), `pid="1"`}
					r.Shuffle(len(of), func(i, j int) { of[i], of[j] = of[j], of[i] })
					lines = append(lines, fmt.Sprintf("%s{%s} %v\n", names[i], strings.Join(of, ","), v), "# HELP "+names[i]+"\n", names[i]+"_x 1\n")
				}
			}
			want[rank] = w
			all = load.Report{Waiting: all.Waiting + w.Waiting, Running: all.Running + w.Running}
		}
		r.Shuffle(len(lines), func(i, j int) { lines[i], lines[j] = lines[j], lines[i] })
		page := strings.Join(lines, "")
		if got, err := load.Read(strings.NewReader(page), max(ranks, 2)); err != nil || !slices.Equal(got, want) {
			t.Fatalf("%v, %v, want %v of\n%s", got, err, want, page)
		}
		if got, err := load.Read(strings.NewReader(page), 1); err != nil || !slices.Equal(got, []load.Report{all}) {
			t.Fatalf("%v, %v, want %v of\n%s", got, err, all, page)
		}
	}
}

func FuzzRead(f *testing.F) {
	for _, file := range []string{"vllm", "vllm-ranks", "sglang-ranks"} {
		page, err := os.ReadFile("testdata/" + file + ".txt")
		if err != nil {
			f.Fatal(err)
		}
		f.Add(string(page), 2)
	}
	f.Add(`vllm:num_requests_waiting{a="\"",engine="1"} 1 2`+"\n", 0)
	f.Fuzz(func(t *testing.T, page string, ranks int) {
		reports, err := load.Read(strings.NewReader(page), ranks)
		if (err == nil) != (len(reports) > 0) {
			t.Fatal(reports, err)
		}
		last := -1
		for _, r := range reports {
			if r.Rank <= last || r.Waiting < 0 || r.Running < 0 || r.Rank >= max(ranks, 1) {
				t.Fatalf("%+v, %d ranks", reports, ranks)
			}
			last = r.Rank
		}
	})
}
