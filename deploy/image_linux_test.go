package deploy_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"debug/buildinfo"
	"debug/elf"
	"encoding/json"
	"encoding/pem"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	apiruntime "k8s.io/apimachinery/pkg/runtime"

	"github.com/kvindex/kvindex"
	"github.com/kvindex/kvindex/internal/fakeengine"
	"github.com/kvindex/kvindex/internal/zmtp/zmtptest"
	"github.com/kvindex/kvindex/tokenize/chat"
)

var long = flag.Bool("long", false, "long form: every image, for amd64 and arm64, one of them with nothing in Go's cache")

// insideOf names the folder of the roots that containers have, in the process that starts them:
// a root has the name of its image.
const insideOf = "KVINDEX_DEPLOY_ROOTS"

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

// file has the properties of a file that must be equal in all builds.
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
	must(t, err)
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
	must(t, err)
	defer e.Close()
	if e.Machine != machine || e.Section(".interp") != nil {
		t.Errorf("the program is for %v, or not static", e.Machine)
	}
	info, err := buildinfo.ReadFile(path)
	must(t, err)
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
	must(t, err)
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

// image builds the image of kvindexd with buildah, in the format "oci" or "docker". It returns its root
// and the digest of its configuration and layers, or "" where buildah cannot run anything. An image with
// the Go of this machine replaces the registry's image with Go.
func image(t *testing.T, from, format string) (root, id string) {
	t.Helper()
	b := buildah{t.TempDir()}
	base := t.TempDir()
	for _, dir := range []string{"usr", "etc/ssl", "tmp", "root", "go", "cache", "modules"} {
		must(t, os.MkdirAll(filepath.Join(base, "base", dir), 0o755))
	}
	for _, name := range []string{"bin", "lib", "lib64", "sbin"} {
		must(t, os.Symlink("usr/"+name, filepath.Join(base, "base", name)))
	}
	must(t, os.WriteFile(filepath.Join(base, "Dockerfile"), []byte("FROM scratch\nCOPY base/ /\nENV PATH=/go/bin:/usr/bin:/bin GOCACHE=/cache GOMODCACHE=/modules HOME=/root\n"), 0o600))
	// A failure here is a failure for every Dockerfile.
	must(t, os.WriteFile(filepath.Join(base, "probe"), []byte("FROM localhost/go\nRUN true\n"), 0o600))
	_, err := b.try(base, "bud", "-t", "localhost/go", ".")
	if err == nil {
		_, err = b.try(base, "bud", "--volume=/usr:/usr:ro", "-f", "probe", ".")
	}
	if err != nil {
		t.Log("no image is built:", err)
		return "", ""
	}
	goes := strings.Fields(output(t, "go", "env", "GOROOT", "GOCACHE", "GOMODCACHE", "GOPROXY"))
	b.run(t, from, "bud", "-f", "deploy/Dockerfile", "--format="+format, "--target=kvindexd", "--timestamp=0", "--build-arg=GO=localhost/go", "--env=GOPROXY="+goes[3],
		"--volume=/usr:/usr:ro", "--volume=/etc/ssl:/etc/ssl:ro", "--volume="+goes[0]+":/go:ro", "--volume="+goes[1]+":/cache", "--volume="+goes[2]+":/modules",
		"-t", "localhost/kvindexd", ".")
	var of struct {
		FromImageID string
		Docker      struct {
			Config struct {
				User        string
				Entrypoint  []string
				Healthcheck struct{ Test []string }
			} `json:"config"`
		}
	}
	must(t, json.Unmarshal([]byte(b.run(t, from, "inspect", "--type=image", "localhost/kvindexd")), &of))
	if c := of.Docker.Config; c.User != "65532:65532" || !slices.Equal(c.Entrypoint, []string{"/kvindexd"}) || format == "docker" && !slices.Equal(c.Healthcheck.Test, []string{"CMD", "/kvindexd", "healthcheck"}) {
		t.Errorf("the image is %+v", c)
	}
	mounted := b.run(t, from, "mount", b.run(t, from, "from", "--pull-never", "localhost/kvindexd"))
	root = filepath.Join(t.TempDir(), "root")
	output(t, "cp", "-a", mounted, root)
	return root, of.FromImageID
}

var machines = map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}

// TestImage: two builds from different folders have the same bytes. If buildah is installed, one of
// them is the image that it builds; the long form builds that image twice. Then a root runs as a
// container.
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
	other, _ := image(t, from, "docker")
	if other == "" {
		other = layOut(t, sources(t), "./cmd/kvindexd")
	}
	if a, b := filesOf(t, root), filesOf(t, other); !maps.Equal(a, b) {
		t.Errorf("two builds differ:\n%v\n%v", a, b)
	}
	if *long {
		_, id := image(t, from, "oci") // that of docker has the name of a container
		if _, again := image(t, sources(t), "oci"); again != id {
			t.Errorf("buildah builds the image %s, and then %s", id, again)
		}
		if a, b := filesOf(t, root), filesOf(t, layOut(t, sources(t), "./cmd/kvindexd", "GOCACHE="+t.TempDir())); !maps.Equal(a, b) {
			t.Errorf("a build without Go's cache differs:\n%v\n%v", a, b)
		}
		for arch, machine := range machines {
			for _, tags := range []string{"", "kubernetes"} {
				isRoot(t, layOut(t, from, "./cmd/kvindexd", "GOARCH="+arch, "TAGS="+tags), "kvindexd", machine)
			}
			isRoot(t, layOut(t, from, "./epp/cmd/kvindex-epp", "GOARCH="+arch), "kvindex-epp", machine)
			isRoot(t, layOut(t, from, "./offload/cmd/kvoffload", "GOARCH="+arch), "kvoffload", machine)
		}
	}

	// The roots of the other images differ in the program alone.
	roots := t.TempDir()
	output(t, "cp", "-a", other, filepath.Join(roots, "kvindexd"))
	for image, path := range map[string]string{"kvindexd:kubernetes": "./cmd/kvindexd", "kvindex-epp": "./epp/cmd/kvindex-epp", "kvoffload": "./offload/cmd/kvoffload"} {
		name, tags, _ := strings.Cut(image, ":")
		output(t, "cp", "-a", other, filepath.Join(roots, image))
		output(t, "install", program(t, path, tags), filepath.Join(roots, image, name))
	}
	// A process in namespaces of its own for network, mounts and processes starts the containers, so
	// that the ports are free.
	c := exec.Command("/proc/self/exe", "-test.run=^TestImage$", "-test.v", "-test.timeout=8m")
	c.Env = append(os.Environ(), insideOf+"="+roots)
	c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET | unix.CLONE_NEWNS | unix.CLONE_NEWPID}
	out, err := c.CombinedOutput()
	if errors.Is(err, fs.ErrPermission) {
		t.Log("no container is started:", err)
	} else if err != nil {
		t.Fatalf("%v:\n%s", err, out)
	}
	t.Logf("%s", out)
}

// inside starts the container of each folder, in turn.
func inside(t *testing.T, roots string) {
	must(t, unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""))
	must(t, unix.Mount("proc", "/proc", "proc", 0, ""))
	loopback(t)
	for _, folder := range []string{"overlays/reference", "base", "overlays/single", "overlays/shared", "overlays/replicas", "overlays/epp", "janitor", "lmcache"} {
		t.Run(folder, func(t *testing.T) {
			ctx := zmtptest.Context(t)
			e := newEngine(t)
			cluster := newCluster(t)
			if folder == "overlays/reference" { // it is alive before there is a Redis
				c := startPod(t, roots, build(t, folder), cluster)
				wait(ctx, t, "the liveness probe without Redis", func() bool { return c.answers(c.of.LivenessProbe) })
				if c.answers(c.of.ReadinessProbe) {
					t.Error("it is ready without Redis")
				}
				c.end(t)
			}
			if folder != "lmcache" {
				redis(ctx, t)
			}
			objects := build(t, folder)
			c := startPod(t, roots, objects, cluster)
			c.isReady(ctx, t)
			c.isConfined(t)
			switch folder {
			case "lmcache":
				stores(t)
				fallthrough
			case "janitor", "overlays/epp": // what these do has tests in their modules
				c.end(t)
				return
			}

			// The engine stores two prompts repeatedly until the scores show both: events from
			// before kvindexd listens are lost.
			wait(ctx, t, "scores", func() bool { return e.serve(ctx, t) && e.isScored(ctx, t) })
			if folder == "overlays/replicas" {
				cluster.peer = snapshot(t)
			}
			c.end(t)
			if folder != "overlays/replicas" {
				return
			}
			e.stop() // a new replica has the blocks of its peer's snapshot only
			c = startPod(t, roots, objects, cluster)
			c.isReady(ctx, t)
			if !e.isScored(ctx, t) {
				t.Error("a new replica lacks the blocks of its peer")
			}
			c.end(t)
		})
	}
}

// A cluster has the servers that the containers use beside engines and Redis: the API server, and the
// peers of a replica behind their Service.
type cluster struct {
	account map[string][]byte // files of the account
	env     []string          // variables that each pod gets, and the one by which peers are reached
	peer    []byte            // the snapshot of the peer; nil: there is none
}

// newCluster starts an API server that has the first engine of the example, on this machine, and
// allows an account what the Roles allow.
func newCluster(t *testing.T) *cluster {
	t.Helper()
	const token = "token of the account"
	pod := core.Pod{ObjectMeta: one[*apps.StatefulSet](t, build(t, "engines")).Spec.Template.ObjectMeta}
	pod.Kind, pod.APIVersion, pod.ResourceVersion = "Pod", "v1", "7"
	pod.Name, pod.Namespace, pod.UID = "vllm-0", "inference", "u"
	pod.Status = core.PodStatus{Phase: core.PodRunning, PodIP: "127.0.0.1", Conditions: []core.PodCondition{{Type: core.PodReady, Status: core.ConditionTrue}}}
	api := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		q := r.URL.Query()
		selector, err := labels.Parse(q.Get("labelSelector"))
		if r.Method != http.MethodGet || r.URL.Path != "/api/v1/namespaces/inference/pods" || r.Header.Get("Authorization") != "Bearer "+token || err != nil {
			t.Errorf("a request to the API server: %s %s", r.Method, r.URL)
			http.Error(w, "forbidden", http.StatusForbidden)
			return
		}
		list := core.PodList{TypeMeta: meta.TypeMeta{Kind: "PodList", APIVersion: "v1"}, ListMeta: meta.ListMeta{ResourceVersion: "7"}}
		if selector.Matches(labels.Set(pod.Labels)) {
			list.Items = append(list.Items, pod)
		}
		w.Header().Set("Content-Type", "application/json")
		to := json.NewEncoder(w)
		if q.Get("watch") == "" {
			_ = to.Encode(list)
			return
		}
		if q.Get("sendInitialEvents") == "true" {
			for i := range list.Items {
				_ = to.Encode(meta.WatchEvent{Type: "ADDED", Object: apiruntime.RawExtension{Object: &list.Items[i]}})
			}
			_ = to.Encode(meta.WatchEvent{Type: "BOOKMARK", Object: apiruntime.RawExtension{Object: &core.Pod{
				TypeMeta:   pod.TypeMeta,
				ObjectMeta: meta.ObjectMeta{ResourceVersion: "7", Annotations: map[string]string{meta.InitialEventsAnnotationKey: "true"}},
			}}})
		}
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	}))
	k := &cluster{account: map[string][]byte{
		"token": []byte(token), "namespace": []byte("inference"), "ca.crt": pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: api.Certificate().Raw}),
	}}
	// The port of the peers is the container's own on this machine, so a proxy stands for them.
	peers := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.String() != "http://kvindexd-peers:8081/v1/snapshot" || r.Header.Get("Authorization") != "Bearer "+secrets["kvindexd-admin token"]:
			t.Errorf("a request to a peer: %s %s", r.Method, r.URL)
		case k.peer != nil:
			_, _ = w.Write(k.peer)
			return
		}
		http.Error(w, "nobody is there", http.StatusBadGateway)
	}))
	host, port, err := net.SplitHostPort(api.Listener.Addr().String())
	must(t, err)
	k.env = []string{"KUBERNETES_SERVICE_HOST=" + host, "KUBERNETES_SERVICE_PORT=" + port, "HTTP_PROXY=" + peers.URL}
	t.Cleanup(func() {
		api.CloseClientConnections()
		api.Close()
		peers.Close()
	})
	return k
}

// snapshot returns the snapshot of the container, as a peer gets it.
func snapshot(t *testing.T) []byte {
	t.Helper()
	r, err := http.NewRequest(http.MethodGet, "http://127.0.0.1:8081/v1/snapshot", nil)
	must(t, err)
	r.Header.Set("Authorization", "Bearer "+secrets["kvindexd-admin token"])
	a, err := http.DefaultClient.Do(r)
	must(t, err)
	defer a.Body.Close()
	b, err := io.ReadAll(a.Body)
	if err != nil || a.StatusCode != http.StatusOK {
		t.Fatalf("a snapshot: %s %v", a.Status, err)
	}
	return b
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
	must(t, err)
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
	must(t, err)
	defer unix.Close(fd)
	r, err := unix.NewIfreq("lo")
	must(t, err)
	r.SetUint16(unix.IFF_UP)
	must(t, unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, r))
}

// redis starts an empty Redis at the address of the folders.
func redis(ctx context.Context, t *testing.T) {
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
	wait(ctx, t, "Redis", func() bool {
		conn, err := net.Dial("tcp", "127.0.0.1:6379")
		if err != nil {
			return false
		}
		conn.Close()
		return true
	})
}

// modelFiles returns the files of a small tokenizer and a template.
func modelFiles(t *testing.T) map[string][]byte {
	t.Helper()
	tokenizer, err := os.ReadFile("../tokenize/testdata/tiny.json")
	must(t, err)
	return map[string][]byte{"tokenizer.json": tokenizer, "tokenizer_config.json": []byte(`{"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"}`)}
}

// engine is one that publishes where the folders look for it, until stop is called.
type engine struct {
	*fakeengine.Engine
	model kvindex.Model
	stop  func()
}

func newEngine(t *testing.T) *engine {
	t.Helper()
	const name = modelName
	dir := t.TempDir()
	for file, text := range modelFiles(t) {
		must(t, os.WriteFile(filepath.Join(dir, file), text, 0o600))
	}
	model, err := kvindex.LoadModel(dir, chat.Options{})
	must(t, err)
	p, err := fakeengine.NewPublisher(fakeengine.PublisherConfig{Topic: "kv@pod-1@" + name, Endpoint: "tcp://127.0.0.1:5557", Replay: "tcp://127.0.0.1:5657"})
	must(t, err)
	stop := sync.OnceFunc(func() { _ = p.Close() })
	t.Cleanup(stop)
	e, err := fakeengine.New(fakeengine.Config{Model: name, Publish: func(payload []byte) { p.Publish(payload) }})
	must(t, err)
	return &engine{e, model, stop}
}

func (e *engine) tokens(ctx context.Context, t *testing.T, text string) []uint32 {
	t.Helper()
	ids, err := e.model.Tokenizer.Encode(ctx, nil, text, true)
	must(t, err)
	return ids
}

const modelName, story = "Qwen/Qwen2.5-7B-Instruct", "Once upon a time there was a fleet of engines, and each of them remembered other prompts."

// serve empties the cache of the engine, and stores the story, and a chat of it. It is true.
func (e *engine) serve(ctx context.Context, t *testing.T) bool {
	t.Helper()
	e.Reset()
	for _, text := range []string{story, "user: " + story + "\n"} {
		if _, err := e.Submit(fakeengine.Request{Tokens: e.tokens(ctx, t, text)}); err != nil {
			t.Fatal(err)
		}
	}
	e.Drain()
	return true
}

// isScored reports whether the container's scores have all blocks that serve has stored.
func (e *engine) isScored(ctx context.Context, t *testing.T) bool {
	t.Helper()
	var scores map[string]int
	var answer struct{ PodScores map[string]int }
	return post(t, "/score_completions", fmt.Sprintf(`{"model": %q, "prompt": %q}`, modelName, story), &scores) && has(scores, len(e.tokens(ctx, t, story))/16) &&
		post(t, "/score_chat_completions", fmt.Sprintf(`{"model": %q, "messages": [{"role": "user", "content": %q}]}`, modelName, story), &answer) &&
		has(answer.PodScores, len(e.tokens(ctx, t, "user: "+story+"\n"))/16)
}

// A container is a process that runs in a root as Kubernetes would run it.
type container struct {
	*exec.Cmd
	of  *core.Container
	log *bytes.Buffer
}

// startPod starts the first container of a folder's pod: with its arguments, variables
// and volumes, as its user, without capabilities, in a root that cannot be written. All names of
// its peers stand for this machine. There is no hub, so the model is in its cache, or where the
// init container leaves it.
func startPod(t *testing.T, roots string, objects []object, k *cluster) *container {
	t.Helper()
	spec := &podOf(t, objects).Spec
	c := spec.Containers[0].DeepCopy()
	root := filepath.Join(roots, c.Image)
	model := modelFiles(t)
	const account = "account"
	if token := spec.AutomountServiceAccountToken; token == nil || *token {
		c.VolumeMounts = append(c.VolumeMounts, core.VolumeMount{Name: account, MountPath: "/var/run/secrets/kubernetes.io/serviceaccount", ReadOnly: true})
	}
	dir := t.TempDir()
	hosts := filepath.Join(t.TempDir(), "hosts")
	must(t, os.WriteFile(hosts, []byte("127.0.0.1 localhost redis vllm-service vllm.inference.svc.cluster.local\n"), 0o644))
	must(t, os.MkdirAll(filepath.Join(root, "proc"), 0o755))
	must(t, os.WriteFile(filepath.Join(root, "etc/hosts"), nil, 0o644))
	for _, m := range c.VolumeMounts {
		must(t, os.MkdirAll(filepath.Join(root, m.MountPath), 0o755))
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
		case "password":
			files[m.Name] = []byte(secrets["kv-store password"])
		case account:
			files = k.account
		case "models":
			files = model
		case "config":
			for name, text := range one[*core.ConfigMap](t, objects).Data {
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
			must(t, os.MkdirAll(filepath.Dir(path), 0o755))
			must(t, os.WriteFile(path, text, 0o644))
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

	env := environment(t, c)
	values := make(map[string]string)
	for _, e := range env {
		name, value, _ := strings.Cut(e, "=")
		values[name] = value
	}
	var args []string
	for _, a := range c.Args {
		args = append(args, expand(a, values))
	}
	program, _, _ := strings.Cut(c.Image, ":")
	p := &container{exec.Command("/"+program, args...), c, new(bytes.Buffer)}
	p.Env = append(append(env, "HF_HUB_OFFLINE=1"), k.env...)
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
	must(t, <-started)
	t.Cleanup(func() {
		_ = p.Process.Kill()
		_ = p.Wait()
		if t.Failed() {
			t.Logf("%s", p.log)
		}
	})
	return p
}

// answers: a probe of the container succeeds.
func (c *container) answers(p *core.Probe) bool {
	if p.Exec != nil {
		run := exec.Command(p.Exec.Command[0], p.Exec.Command[1:]...)
		run.Dir, run.SysProcAttr = c.Dir, c.SysProcAttr
		return run.Run() == nil
	}
	if p.TCPSocket != nil {
		conn, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", portsOf(c.of)[p.TCPSocket.Port.StrVal]))
		if err != nil {
			return false
		}
		conn.Close()
		return true
	}
	port := p.HTTPGet.Port.IntVal
	if port == 0 {
		port = portsOf(c.of)[p.HTTPGet.Port.StrVal]
	}
	a, err := http.Get(fmt.Sprintf("http://127.0.0.1:%d%s", port, p.HTTPGet.Path))
	if err != nil {
		return false
	}
	a.Body.Close()
	return a.StatusCode == http.StatusOK
}

// stores fails unless the container keeps a value for a client with the password.
func stores(t *testing.T) {
	t.Helper()
	conn, err := net.Dial("tcp", "127.0.0.1:6379")
	must(t, err)
	defer conn.Close()
	in := bufio.NewReader(conn)
	for _, c := range []struct{ command, want string }{
		{"GET k", "-NOAUTH"}, {"AUTH " + secrets["kv-store password"], "+OK"}, {"SET k v", "+OK"}, {"GET k", "$1"},
	} {
		fmt.Fprintf(conn, "%s\r\n", c.command)
		if said, err := in.ReadString('\n'); err != nil || !strings.HasPrefix(said, c.want) {
			t.Fatalf("%s: %q %v", c.command, said, err)
		}
	}
}

// isReady waits until all probes succeed.
func (c *container) isReady(ctx context.Context, t *testing.T) {
	t.Helper()
	for _, p := range []*core.Probe{c.of.StartupProbe, c.of.LivenessProbe, c.of.ReadinessProbe} {
		if p != nil {
			wait(ctx, t, p.String(), func() bool { return c.answers(p) })
		}
	}
}

// isConfined: the process has the user of the image, no capability, and a root that cannot be
// written.
func (c *container) isConfined(t *testing.T) {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", c.Process.Pid))
	must(t, err)
	for _, want := range []string{"Uid:\t65532\t65532\t65532\t65532\n", "CapPrm:\t0000000000000000\n", "CapEff:\t0000000000000000\n", "CapBnd:\t0000000000000000\n", "CapAmb:\t0000000000000000\n", "NoNewPrivs:\t1\n"} {
		if !bytes.Contains(status, []byte(want)) {
			t.Errorf("the process has no %q:\n%s", want, status)
		}
	}
	if err := os.WriteFile(fmt.Sprintf("/proc/%d/root/kvindexd.new", c.Process.Pid), nil, 0o644); err == nil {
		t.Error("the root can be written")
	}
}

// end ends the container as Kubernetes does, and fails if the exit is not clean.
func (c *container) end(t *testing.T) {
	t.Helper()
	must(t, c.Process.Signal(unix.SIGTERM))
	if err := c.Wait(); err != nil {
		t.Errorf("the container ended with %v: %s", err, c.log)
	}
}
