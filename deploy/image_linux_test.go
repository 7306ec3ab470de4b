package deploy_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"debug/buildinfo"
	"debug/elf"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"

	"github.com/kvindex/kvindex"
	"github.com/kvindex/kvindex/internal/fakeengine"
	"github.com/kvindex/kvindex/internal/zmtp/zmtptest"
	"github.com/kvindex/kvindex/tokenize/chat"
)

var long = flag.Bool("long", false, "long form: every image, for amd64 and arm64, one of them with nothing in Go's cache")

// insideOf names the root that the containers have, in the process that starts them.
const insideOf = "KVINDEX_DEPLOY_ROOT"

// sources copies the files of the repository to another folder.
func sources(t *testing.T) string {
	t.Helper()
	to := t.TempDir()
	c := exec.Command("sh", "-euc", `git ls-files -z --cached --others --exclude-standard | tar -c --null -T - | tar -x -C "$0"`, to)
	c.Dir = ".."
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return to
}

// layOut runs root.sh of a copy of the sources.
func layOut(t *testing.T, from, program string, env ...string) string {
	t.Helper()
	to := filepath.Join(t.TempDir(), "root")
	c := exec.Command("sh", filepath.Join(from, "deploy", "root.sh"), program, to)
	c.Env = append(os.Environ(), env...)
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("%s for %q: %v: %s", program, env, err, out)
	}
	return to
}

// file is what of a file has to be the same in each build.
type file struct {
	mode fs.FileMode
	time int64
	hash [sha256.Size]byte
}

func filesOf(t *testing.T, root string) map[string]file {
	t.Helper()
	files := make(map[string]file)
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || path == root {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		f := file{mode: info.Mode(), time: info.ModTime().Unix()}
		if !d.IsDir() {
			text, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			f.hash = sha256.Sum256(text)
		}
		files[strings.TrimPrefix(path, root)] = f
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// isRoot: a root has these files and no other, and its program is static, of the sources alone.
func isRoot(t *testing.T, root, program string, machine elf.Machine) {
	t.Helper()
	files := filesOf(t, root)
	want := []string{"/etc", "/etc/group", "/etc/passwd", "/etc/ssl", "/etc/ssl/certs", "/etc/ssl/certs/ca-certificates.crt", "/" + program}
	if got := slices.Sorted(maps.Keys(files)); !slices.Equal(got, slices.Sorted(slices.Values(want))) {
		t.Fatalf("the root has %q, want %q", got, want)
	}
	for name, f := range files {
		if f.time != 0 || f.mode.Perm()&0o022 != 0 || f.mode.Perm()&0o444 != 0o444 {
			t.Errorf("%s: %v, of %d", name, f.mode, f.time)
		}
	}
	path := filepath.Join(root, program)
	e, err := elf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	if e.Machine != machine || e.Section(".interp") != nil {
		t.Errorf("the program is for %v, or not static", e.Machine)
	}
	info, err := buildinfo.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range info.Settings {
		if strings.HasPrefix(s.Key, "vcs") {
			t.Errorf("the program has %s", s.Key)
		}
	}
}

// buildah runs buildah with a store of the test's own, under chroot isolation.
type buildah struct{ store string }

func (b buildah) run(t *testing.T, dir string, args ...string) string {
	t.Helper()
	out, err := b.try(dir, args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func (b buildah) try(dir string, args ...string) (string, error) {
	c := exec.Command("buildah", append([]string{"--storage-driver=vfs", "--root=" + b.store + "/root", "--runroot=" + b.store + "/run"}, args...)...)
	c.Dir = dir
	c.Env = append(os.Environ(), "BUILDAH_ISOLATION=chroot")
	var out, errs bytes.Buffer
	c.Stdout, c.Stderr = &out, &errs
	if err := c.Run(); err != nil {
		return "", fmt.Errorf("buildah %s: %w: %s", args[0], err, errs.Bytes())
	}
	return strings.TrimSpace(out.String()), nil
}

// image builds the image of kvindexd with buildah, and returns its root, or "" where buildah
// cannot run anything. In place of the image with Go, which a registry has, stands one that has
// the Go of this machine.
func image(t *testing.T, from string) string {
	t.Helper()
	b := buildah{t.TempDir()}
	base := t.TempDir()
	for _, dir := range []string{"usr", "etc/ssl", "tmp", "root", "go", "cache", "modules"} {
		if err := os.MkdirAll(filepath.Join(base, "base", dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"bin", "lib", "lib64", "sbin"} {
		if err := os.Symlink("usr/"+name, filepath.Join(base, "base", name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(base, "Dockerfile"), []byte("FROM scratch\nCOPY base/ /\nENV PATH=/go/bin:/usr/bin:/bin GOCACHE=/cache GOMODCACHE=/modules HOME=/root\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	// Whatever fails here fails for any Dockerfile.
	if err := os.WriteFile(filepath.Join(base, "probe"), []byte("FROM localhost/go\nRUN true\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := b.try(base, "bud", "-t", "localhost/go", ".")
	if err == nil {
		_, err = b.try(base, "bud", "--volume=/usr:/usr:ro", "-f", "probe", ".")
	}
	if err != nil {
		t.Log("no image is built:", err)
		return ""
	}
	goes := strings.Fields(output(t, "go", "env", "GOROOT", "GOCACHE", "GOMODCACHE", "GOPROXY"))
	b.run(t, from, "bud", "-f", "deploy/Dockerfile", "--format=docker", "--target=kvindexd", "--timestamp=0", "--build-arg=GO=localhost/go", "--env=GOPROXY="+goes[3],
		"--volume=/usr:/usr:ro", "--volume=/etc/ssl:/etc/ssl:ro", "--volume="+goes[0]+":/go:ro", "--volume="+goes[1]+":/cache", "--volume="+goes[2]+":/modules",
		"-t", "localhost/kvindexd", ".")
	var of struct {
		Docker struct {
			Config struct {
				User        string
				Entrypoint  []string
				Healthcheck struct{ Test []string }
			} `json:"config"`
		}
	}
	if err := json.Unmarshal([]byte(b.run(t, from, "inspect", "--type=image", "localhost/kvindexd")), &of); err != nil {
		t.Fatal(err)
	}
	if c := of.Docker.Config; c.User != "65532:65532" || !slices.Equal(c.Entrypoint, []string{"/kvindexd"}) || !slices.Equal(c.Healthcheck.Test, []string{"CMD", "/kvindexd", "healthcheck"}) {
		t.Errorf("the image is %+v", c)
	}
	mounted := b.run(t, from, "mount", b.run(t, from, "from", "--pull-never", "localhost/kvindexd"))
	root := filepath.Join(t.TempDir(), "root")
	output(t, "cp", "-a", mounted, root)
	return root
}

var machines = map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}

// TestImage: two builds from different folders have the same bytes, one of them in the image
// that buildah builds, if it is here. Then the root of one runs as a container.
func TestImage(t *testing.T) {
	if os.Getenv(insideOf) != "" {
		inside(t, os.Getenv(insideOf))
		return
	}
	if os.Getuid() != 0 {
		missing(t, "containers need root")
	}
	from := sources(t)
	root := layOut(t, from, "./cmd/kvindexd")
	isRoot(t, root, "kvindexd", machines[runtime.GOARCH])
	other := image(t, from)
	if other == "" {
		other = layOut(t, sources(t), "./cmd/kvindexd")
	}
	if a, b := filesOf(t, root), filesOf(t, other); !maps.Equal(a, b) {
		t.Errorf("two builds differ:\n%v\n%v", a, b)
	}
	if *long {
		if a, b := filesOf(t, root), filesOf(t, layOut(t, sources(t), "./cmd/kvindexd", "GOCACHE="+t.TempDir())); !maps.Equal(a, b) {
			t.Errorf("a build without Go's cache differs:\n%v\n%v", a, b)
		}
		for arch, machine := range machines {
			for _, tags := range []string{"", "kubernetes"} {
				isRoot(t, layOut(t, from, "./cmd/kvindexd", "GOARCH="+arch, "TAGS="+tags), "kvindexd", machine)
			}
			isRoot(t, layOut(t, from, "./epp/cmd/kvindex-epp", "GOARCH="+arch), "kvindex-epp", machine)
		}
	}

	// A process in a network, a tree of mounts and a list of processes of its own starts the
	// containers, so that the ports are free.
	c := exec.Command("/proc/self/exe", "-test.run=^TestImage$", "-test.v", "-test.timeout=8m")
	c.Env = append(os.Environ(), insideOf+"="+other)
	c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET | unix.CLONE_NEWNS | unix.CLONE_NEWPID}
	out, err := c.CombinedOutput()
	if errors.Is(err, fs.ErrPermission) {
		t.Log("no container is started:", err)
	} else if err != nil {
		t.Fatalf("%v:\n%s", err, out)
	}
	t.Logf("%s", out)
}

// inside starts the container of each folder that needs no cluster, in turn.
func inside(t *testing.T, root string) {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("proc", "/proc", "proc", 0, ""); err != nil {
		t.Fatal(err)
	}
	loopback(t)
	const model = "Qwen/Qwen2.5-7B-Instruct"
	files := modelFiles(t)
	e := newEngine(t, model)
	redis(t)
	for _, folder := range []string{"overlays/reference", "base", "overlays/single", "overlays/shared"} {
		t.Run(folder, func(t *testing.T) {
			ctx := zmtptest.Context(t)
			objects := build(t, folder)
			spec := &one[*apps.Deployment](t, objects).Spec.Template.Spec
			c := start(t, root, spec, one[*core.ConfigMap](t, objects), files)
			for _, p := range []*core.Probe{spec.Containers[0].StartupProbe, spec.Containers[0].LivenessProbe, spec.Containers[0].ReadinessProbe} {
				if p != nil {
					wait(ctx, t, p.HTTPGet.Path, func() bool {
						a, err := http.Get("http://127.0.0.1:8080" + p.HTTPGet.Path)
						if err != nil {
							return false
						}
						a.Body.Close()
						return a.StatusCode == http.StatusOK
					})
				}
			}
			c.isConfined(t)

			// The engine stores two prompts again and again until the scores show both: what it
			// says before kvindexd listens is lost.
			const text = "Once upon a time there was a fleet of engines, and each of them remembered other prompts."
			prompt, conversation := e.tokens(ctx, t, text), e.tokens(ctx, t, "user: "+text+"\n")
			completions := fmt.Sprintf(`{"model": %q, "prompt": %q}`, model, text)
			chats := fmt.Sprintf(`{"model": %q, "messages": [{"role": "user", "content": %q}]}`, model, text)
			wait(ctx, t, "scores", func() bool {
				e.serve(t, prompt, conversation)
				var scores map[string]int
				var answer struct{ PodScores map[string]int }
				return post(t, "/score_completions", completions, &scores) && has(scores, len(prompt)/16) &&
					post(t, "/score_chat_completions", chats, &answer) && has(answer.PodScores, len(conversation)/16)
			})
			c.end(t)
		})
	}
}

// has: one pod has the score, and there is no other.
func has(scores map[string]int, want int) bool {
	for _, s := range scores {
		return len(scores) == 1 && s == want && want > 0
	}
	return false
}

// post sends a body to a container, and reads the answer. It is false as long as the container
// is not ready.
func post(t *testing.T, path, body string, into any) bool {
	t.Helper()
	a, err := http.Post("http://127.0.0.1:8080"+path, "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer a.Body.Close()
	var text bytes.Buffer
	if _, err := text.ReadFrom(a.Body); err != nil {
		t.Fatal(err)
	}
	if a.StatusCode == http.StatusServiceUnavailable {
		return false
	}
	if a.StatusCode != http.StatusOK {
		t.Fatalf("%s answers %s: %s", path, a.Status, text.Bytes())
	}
	if err := json.Unmarshal(text.Bytes(), into); err != nil {
		t.Fatalf("%s: %v: %s", path, err, text.Bytes())
	}
	return true
}

// wait calls f until it is true.
func wait(ctx context.Context, t *testing.T, what string, f func() bool) {
	t.Helper()
	for !f() {
		select {
		case <-ctx.Done():
			t.Fatalf("%s: %v", what, ctx.Err())
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// loopback brings up the loopback interface of a new network.
func loopback(t *testing.T) {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	r, err := unix.NewIfreq("lo")
	if err != nil {
		t.Fatal(err)
	}
	r.SetUint16(unix.IFF_UP)
	if err := unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, r); err != nil {
		t.Fatal(err)
	}
}

// redis starts a Redis at the address of the folders.
func redis(t *testing.T) {
	t.Helper()
	server := os.Getenv("KVINDEX_REDIS_SERVER")
	if server == "" {
		server = "redis-server"
	}
	c := exec.Command(server, "--port", "6379", "--save", "", "--dir", t.TempDir())
	if err := c.Start(); err != nil {
		missing(t, "%v", err)
	}
	t.Cleanup(func() { _ = c.Process.Kill(); _ = c.Wait() })
}

// modelFiles returns the files of a small tokenizer and a template.
func modelFiles(t *testing.T) map[string][]byte {
	t.Helper()
	tokenizer, err := os.ReadFile("../tokenize/testdata/tiny.json")
	if err != nil {
		t.Fatal(err)
	}
	return map[string][]byte{"tokenizer.json": tokenizer, "tokenizer_config.json": []byte(`{"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"}`)}
}

// engine is one that publishes where the folders look for it.
type engine struct {
	*fakeengine.Engine
	model kvindex.Model
}

func newEngine(t *testing.T, name string) *engine {
	t.Helper()
	dir := t.TempDir()
	for file, text := range modelFiles(t) {
		if err := os.WriteFile(filepath.Join(dir, file), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	model, err := kvindex.LoadModel(dir, chat.Options{})
	if err != nil {
		t.Fatal(err)
	}
	p, err := fakeengine.NewPublisher(fakeengine.PublisherConfig{Topic: "kv@pod-1@" + name, Endpoint: "tcp://127.0.0.1:5557", Replay: "tcp://127.0.0.1:5657"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() })
	e, err := fakeengine.New(fakeengine.Config{Model: name, Publish: func(payload []byte) { p.Publish(payload) }})
	if err != nil {
		t.Fatal(err)
	}
	return &engine{e, model}
}

func (e *engine) tokens(ctx context.Context, t *testing.T, text string) []uint32 {
	t.Helper()
	ids, err := e.model.Tokenizer.Encode(ctx, nil, text, true)
	if err != nil {
		t.Fatal(err)
	}
	return ids
}

// serve empties the cache of the engine, and stores the prompts.
func (e *engine) serve(t *testing.T, prompts ...[]uint32) {
	t.Helper()
	e.Reset()
	for _, p := range prompts {
		if _, err := e.Submit(fakeengine.Request{Tokens: p}); err != nil {
			t.Fatal(err)
		}
	}
	e.Drain()
}

// A container is a process that runs in a root as Kubernetes would run it.
type container struct {
	*exec.Cmd
	log *bytes.Buffer
}

// start starts the first container of a pod: with its arguments, variables and volumes, as its
// user, without capabilities, in a root that cannot be written. All names of its peers stand
// for this machine. There is no hub, so the model is in its cache.
func start(t *testing.T, root string, spec *core.PodSpec, config *core.ConfigMap, model map[string][]byte) *container {
	t.Helper()
	c := &spec.Containers[0]
	dir := t.TempDir()
	hosts := filepath.Join(t.TempDir(), "hosts")
	if err := os.WriteFile(hosts, []byte("127.0.0.1 localhost redis vllm-service vllm.inference.svc.cluster.local\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(root, "proc"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(root, "etc/hosts"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for _, m := range c.VolumeMounts {
		if err := os.MkdirAll(filepath.Join(root, m.MountPath), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	mount := func(what, at string, readOnly bool) {
		t.Helper()
		at = filepath.Join(dir, at)
		if err := unix.Mount(what, at, "", unix.MS_BIND, ""); err != nil {
			t.Fatalf("%s: %v", at, err)
		}
		t.Cleanup(func() { _ = unix.Unmount(at, unix.MNT_DETACH) })
		if readOnly {
			if err := unix.Mount("", at, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
				t.Fatalf("%s: %v", at, err)
			}
		}
	}
	mount(root, "", *c.SecurityContext.ReadOnlyRootFilesystem)
	mount("/proc", "proc", true)
	mount(hosts, "etc/hosts", true)
	for _, m := range c.VolumeMounts {
		volume := t.TempDir()
		files := map[string][]byte{}
		switch m.Name {
		case "config":
			for name, text := range config.Data {
				files[name] = []byte(text)
			}
		case "cache":
			const at = "models--Qwen--Qwen2.5-7B-Instruct/"
			const commit = "0123456789abcdef0123456789abcdef01234567"
			files[at+"refs/main"] = []byte(commit)
			for name, text := range model {
				files[at+"snapshots/"+commit+"/"+name] = text
			}
		}
		for name, text := range files {
			path := filepath.Join(volume, name)
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, text, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if err := filepath.WalkDir(volume, func(path string, _ fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			return os.Lchown(path, 65532, 65532) // as fsGroup does
		}); err != nil {
			t.Fatal(err)
		}
		mount(volume, m.MountPath, m.ReadOnly)
	}

	p := &container{exec.Command("/kvindexd", c.Args...), new(bytes.Buffer)}
	p.Env = append(environment(t, c), "HF_HUB_OFFLINE=1")
	p.Dir, p.Stderr = "/", p.log
	p.SysProcAttr = &syscall.SysProcAttr{Chroot: dir, Credential: &syscall.Credential{Uid: uint32(*spec.SecurityContext.RunAsUser), Gid: uint32(*spec.SecurityContext.RunAsGroup)}}
	started := make(chan error)
	go func() {
		runtime.LockOSThread() // and it ends with this goroutine, with what it has given up
		err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
		for cap := uintptr(0); cap <= unix.CAP_LAST_CAP && err == nil; cap++ {
			err = unix.Prctl(unix.PR_CAPBSET_DROP, cap, 0, 0, 0)
		}
		if err == nil {
			err = p.Start()
		}
		started <- err
	}()
	if err := <-started; err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = p.Process.Kill()
		_ = p.Wait()
		if t.Failed() {
			t.Logf("%s", p.log)
		}
	})
	return p
}

// isConfined: the process has the user of the image, no capability, and a root that cannot be
// written.
func (c *container) isConfined(t *testing.T) {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", c.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"Uid:\t65532\t65532\t65532\t65532\n", "CapPrm:\t0000000000000000\n", "CapEff:\t0000000000000000\n", "CapBnd:\t0000000000000000\n", "CapAmb:\t0000000000000000\n", "NoNewPrivs:\t1\n"} {
		if !bytes.Contains(status, []byte(want)) {
			t.Errorf("the process has no %q:\n%s", want, status)
		}
	}
	if err := os.WriteFile(fmt.Sprintf("/proc/%d/root/kvindexd.new", c.Process.Pid), nil, 0o644); err == nil {
		t.Error("the root can be written")
	}
}

// end ends the container as Kubernetes does, and it ends well.
func (c *container) end(t *testing.T) {
	t.Helper()
	if err := c.Process.Signal(unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := c.Wait(); err != nil {
		t.Errorf("the container ended with %v: %s", err, c.log)
	}
}
