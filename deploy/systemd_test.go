package deploy_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

var (
	directive = regexp.MustCompile(`(?m)^([A-Za-z]+)=(.*)$`)
	exposure  = regexp.MustCompile(`exposure level for \S+: ([0-9.]+)`)
	memory    = regexp.MustCompile(`-memory=(\S+)`)
)

// directivesOf returns the directives of a unit. One that stands twice has its last value.
func directivesOf(text []byte) map[string]string {
	unit := make(map[string]string)
	for _, k := range directive.FindAllSubmatch(text, -1) {
		unit[string(k[1])] = string(k[2])
	}
	return unit
}

// TestUnits: systemd-analyze reports no fault of a unit, and its security score is the published one. It
// finds each misspelt directive. sysusers makes the unit's user.
func TestUnits(t *testing.T) {
	if _, err := exec.LookPath("systemd-analyze"); err != nil {
		missing(t, "%v", err)
	}
	for name, path := range map[string]string{"kvindexd": "./cmd/kvindexd", "kvoffload-janitor": "./offload/cmd/kvoffload", "kvoffload-serve": "./offload/cmd/kvoffload"} {
		t.Run(name, func(t *testing.T) {
			file := "systemd/" + name + ".service"
			text, err := os.ReadFile(file)
			must(t, err)
			binary := program(t, path, "")
			verify := func(unit []byte) string {
				at := filepath.Join(t.TempDir(), name+".service")
				must(t, os.WriteFile(at, bytes.ReplaceAll(unit, []byte("/usr/local/bin/"+filepath.Base(path)), []byte(binary)), 0o600))
				out, err := exec.Command("systemd-analyze", "verify", at).CombinedOutput()
				if err != nil {
					return err.Error() + ": " + string(out)
				}
				return string(out)
			}
			if said := verify(text); said != "" {
				t.Errorf("systemd-analyze verify: %s", said)
			}
			said := verify(directive.ReplaceAll(text, []byte("${1}s=$2")))
			for _, k := range directive.FindAllSubmatch(text, -1) {
				if !strings.Contains(said, "'"+string(k[1])+"s'") {
					t.Errorf("%ss is taken", k[1])
				}
			}
			score := exposure.FindStringSubmatch(output(t, "systemd-analyze", "security", "--offline=true", "--no-pager", file))
			if score == nil {
				t.Fatal("systemd-analyze security reports no score")
			}
			t.Logf("systemd-analyze security: %s of 10", score[1])
			if n, err := strconv.ParseFloat(score[1], 64); err != nil || n > 1.5 {
				t.Errorf("the exposure is %s", score[1])
			}
			unit := directivesOf(text)
			if args := strings.Fields(strings.ReplaceAll(unit["ExecStart"], "%d", t.TempDir()))[1:]; len(args) > 0 {
				want := "password: no such file" // the last that it reads before it serves
				if args[0] == "janitor" {
					args[0], args[len(args)-1], want = "check-config", t.TempDir(), "reads="
				}
				if out, _ := exec.Command(binary, args...).CombinedOutput(); !bytes.Contains(out, []byte(want)) {
					t.Errorf("%q: %s", args, out)
				}
			}
			if said := memory.FindStringSubmatch(unit["ExecStart"]); said != nil && 10*bytesOf(t, said[1]) > 8*bytesOf(t, unit["MemoryMax"]+"i") {
				t.Errorf("%s does not fit into %s", said[0], unit["MemoryMax"])
			}

			root := t.TempDir()
			must(t, os.Mkdir(filepath.Join(root, "etc"), 0o755))
			output(t, "install", "-D", "systemd/"+filepath.Base(path)+".sysusers", filepath.Join(root, "usr/lib/sysusers.d/one.conf"))
			output(t, "systemd-sysusers", "--root="+root)
			users, err := os.ReadFile(filepath.Join(root, "etc/passwd"))
			if err != nil || !bytes.Contains(append([]byte("\n"), users...), []byte("\n"+unit["User"]+":")) {
				t.Errorf("%v: there is no user %s:\n%s", err, unit["User"], users)
			}
		})
	}
}

// TestUnit: folders, memory and times of kvindexd's unit agree with the settings of its
// environment file.
func TestUnit(t *testing.T) {
	text, err := os.ReadFile("systemd/kvindexd.service")
	must(t, err)
	unit := directivesOf(text)
	env, err := os.ReadFile("systemd/kvindexd.env")
	must(t, err)
	run := exec.Command(program(t, "./cmd/kvindexd", ""), "check-config")
	values := make(map[string]string)
	for _, line := range strings.Split(string(env), "\n") {
		if name, value, ok := strings.Cut(line, "="); ok && !strings.HasPrefix(line, "#") {
			run.Env, values[name] = append(run.Env, line), value
		}
	}
	out, err := run.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	s := settingsOf(out)
	if s["hub-dir"] != "/var/cache/"+unit["CacheDirectory"] || filepath.Dir(s["snapshot"]) != "/var/lib/"+unit["StateDirectory"] {
		t.Errorf("%s and %s are not the folders of the unit", s["hub-dir"], s["snapshot"])
	}
	for name, value := range values {
		if setting := strings.ReplaceAll(strings.ToLower(strings.TrimPrefix(name, "KVINDEXD_")), "_", "-"); name != "GOMEMLIMIT" && s[setting] != value {
			t.Errorf("%s is %s, and the setting %s", name, value, s[setting])
		}
	}
	if keep, most, limit := boundsOf(t, s), bytesOf(t, values["GOMEMLIMIT"]), bytesOf(t, unit["MemoryMax"]+"i"); keep > most || 10*most > 9*limit {
		t.Errorf("kvindexd keeps %d bytes, GOMEMLIMIT is %d, MemoryMax %d", keep, most, limit)
	}
	if n, err := strconv.Atoi(unit["TimeoutStopSec"]); err != nil || n < 30 {
		t.Errorf("%s s are less than an end may take", unit["TimeoutStopSec"])
	}
}
