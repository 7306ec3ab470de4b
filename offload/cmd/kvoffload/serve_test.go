package main

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

func TestServeFlags(t *testing.T) {
	dir := t.TempDir()
	empty := filepath.Join(dir, "empty")
	if err := os.WriteFile(empty, []byte("\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for args, want := range map[string]string{
		"-listen=":                         "neither -listen nor -unix",
		"-dir x":                           "-dir needs -bytes, and -bytes needs -dir",
		"-bytes 1GiB":                      "-dir needs -bytes, and -bytes needs -dir",
		"-tls-cert x":                      "-tls-cert needs -tls-key, and -tls-key needs -tls-cert",
		"-memory 1GB":                      "not a number of bytes, KiB, MiB, GiB or TiB",
		"-memory -1":                       "not a number of bytes, KiB, MiB, GiB or TiB",
		"-memory 9000000TiB":               "not a number of bytes, KiB, MiB, GiB or TiB",
		"-password-file " + empty:          empty + ": not one line with a password",
		"-password-file " + dir + "/none":  "no such file",
		"-listen 127.0.0.1:0 -memory 1MiB": "too little for a value of one byte",
		"-listen 127.0.0.1:0 -policy mru":  `Config.Policy is "mru"`,
		"-listen 127.0.0.1:0 -page 100":    "resp: PageBytes is 100",
		"-listen 127.0.0.1:0 -promise x":   "invalid value",
		"x":                                "usage",
	} {
		if err := run(append([]string{"serve"}, strings.Fields(args)...), io.Discard); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("serve %s: %v, not %s", args, err, want)
		}
	}
	for text, want := range map[string]size{"0": 0, "4096": 4096, "64KiB": 64 << 10, "512MiB": 512 << 20, "3GiB": 3 << 30, "2TiB": 2 << 40} {
		var s size
		if err := s.Set(text); err != nil || s != want {
			t.Errorf("%s: %d, %v", text, s, err)
		}
	}
}

// TestServeChild is the process of TestServe.
func TestServeChild(t *testing.T) {
	if args := os.Getenv("KVOFFLOAD_SERVE"); args != "" {
		if err := run(append([]string{"serve"}, strings.Fields(args)...), os.Stdout); err != nil {
			t.Fatal(err)
		}
	}
}

// TestServe has a value outlive a process that ends by SIGTERM, in a directory.
func TestServe(t *testing.T) {
	dir, err := os.MkdirTemp("", "serve") // a short path
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	sock := filepath.Join(dir, "s")
	value := strings.Repeat("v", 300_000)
	for _, script := range []struct{ send, want string }{
		{fmt.Sprintf("SET k x\r\n*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$%d\r\n%s\r\n", len(value), value), "+OK\r\n+OK\r\n"},
		{"GET k\r\n", fmt.Sprintf("$%d\r\n%s\r\n", len(value), value)},
	} {
		child := exec.Command(os.Args[0], "-test.run=^TestServeChild$")
		child.Env = append(os.Environ(), "KVOFFLOAD_SERVE=-listen 127.0.0.1:0 -unix "+sock+" -memory 64MiB -dir "+dir+"/kv -bytes 64MiB")
		out, err := child.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := child.Start(); err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewReader(out)
		for _, want := range []string{"listening on 127.0.0.1:", "listening on " + sock + "\n"} {
			if line, err := lines.ReadString('\n'); !strings.HasPrefix(line, want) {
				t.Fatalf("%q, %v", line, err)
			}
		}
		nc, err := net.Dial("unix", sock)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(nc, script.send); err != nil {
			t.Fatal(err)
		}
		got := make([]byte, len(script.want))
		if _, err := io.ReadFull(nc, got); err != nil || string(got) != script.want {
			t.Fatalf("%.60q, %v", got, err)
		}
		nc.Close()
		child.Process.Signal(syscall.SIGTERM)
		io.Copy(io.Discard, lines)
		if err := child.Wait(); err != nil {
			t.Error(err)
		}
	}
}
