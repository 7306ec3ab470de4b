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
	exposure  = regexp.MustCompile(`exposure level for kvindexd.service: ([0-9.]+)`)
)

// TestUnit: systemd-analyze has nothing to say about the unit, whose score is published, and
// finds each directive that is misspelt. Folders, memory and times agree with the settings of
// the environment file.
func TestUnit(t *testing.T) {
	if _, err := exec.LookPath("systemd-analyze"); err != nil {
		missing(t, "%v", err)
	}
	text, err := os.ReadFile("systemd/kvindexd.service")
	if err != nil {
		t.Fatal(err)
	}
	kvindexd := program(t, "./cmd/kvindexd", "")
	verify := func(unit []byte) string {
		path := filepath.Join(t.TempDir(), "kvindexd.service")
		if err := os.WriteFile(path, bytes.ReplaceAll(unit, []byte("/usr/local/bin/kvindexd"), []byte(kvindexd)), 0o600); err != nil {
			t.Fatal(err)
		}
		out, err := exec.Command("systemd-analyze", "verify", path).CombinedOutput()
		if err != nil {
			return err.Error() + ": " + string(out)
		}
		return string(out)
	}
	if said := verify(text); said != "" {
		t.Errorf("systemd-analyze verify: %s", said)
	}
	keys := directive.FindAllSubmatch(text, -1)
	said := verify(directive.ReplaceAll(text, []byte("${1}s=$2")))
	for _, k := range keys {
		if !strings.Contains(said, "'"+string(k[1])+"s'") {
			t.Errorf("%ss is taken", k[1])
		}
	}

	score := exposure.FindStringSubmatch(output(t, "systemd-analyze", "security", "--offline=true", "--no-pager", "systemd/kvindexd.service"))
	if score == nil {
		t.Fatal("systemd-analyze security tells no score")
	}
	t.Logf("systemd-analyze security: %s of 10", score[1])
	if n, err := strconv.ParseFloat(score[1], 64); err != nil || n > 1.5 {
		t.Errorf("the exposure is %s", score[1])
	}

	unit := make(map[string]string)
	for _, k := range keys {
		unit[string(k[1])] = string(k[2])
	}
	env, err := os.ReadFile("systemd/kvindexd.env")
	if err != nil {
		t.Fatal(err)
	}
	run := exec.Command(kvindexd, "check-config")
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
	if keep, most, limit := kept(t, s), bytesOf(t, values["GOMEMLIMIT"]), bytesOf(t, unit["MemoryMax"]+"i"); keep > most || 10*most > 9*limit {
		t.Errorf("kvindexd keeps %d bytes, GOMEMLIMIT is %d, MemoryMax %d", keep, most, limit)
	}
	if n, err := strconv.Atoi(unit["TimeoutStopSec"]); err != nil || n < 30 {
		t.Errorf("%s s are less than an end may take", unit["TimeoutStopSec"])
	}

	root := t.TempDir()
	if err := os.Mkdir(filepath.Join(root, "etc"), 0o755); err != nil {
		t.Fatal(err)
	}
	output(t, "install", "-D", "systemd/kvindexd.sysusers", filepath.Join(root, "usr/lib/sysusers.d/kvindexd.conf"))
	output(t, "systemd-sysusers", "--root="+root)
	users, err := os.ReadFile(filepath.Join(root, "etc/passwd"))
	if err != nil || !bytes.Contains(append([]byte("\n"), users...), []byte("\n"+unit["User"]+":")) {
		t.Errorf("%v: there is no user %s:\n%s", err, unit["User"], users)
	}
}
