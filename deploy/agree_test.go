package deploy_test

import (
	"bufio"
	"bytes"
	"fmt"
	"maps"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	networking "k8s.io/api/networking/v1"
	policy "k8s.io/api/policy/v1"
	rbac "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// services has the folders that run kvindexd, with the number of pods of each.
var services = map[string]int32{"base": 2, "overlays/replicas": 3, "overlays/shared": 2, "overlays/single": 1, "overlays/reference": 3}

// one returns the only object of a type in a folder.
func one[T any](t *testing.T, objects []object) T {
	t.Helper()
	found := all[T](objects)
	if len(found) != 1 {
		t.Fatalf("%d objects are a %T", len(found), *new(T))
	}
	return found[0]
}

func all[T any](objects []object) (found []T) {
	for _, o := range objects {
		if v, ok := o.typed.(T); ok {
			found = append(found, v)
		}
	}
	return found
}

// required: without root, redis-server and systemd-analyze, tests fail.
var required = os.Getenv("KVINDEX_REQUIRE_DEPLOY") == "1"

// missing skips a test, or fails it if every tool is required.
func missing(t *testing.T, format string, args ...any) {
	t.Helper()
	if required {
		t.Fatalf(format, args...)
	}
	t.Skipf(format, args...)
}

func output(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %q: %v: %s", name, args, err, out)
	}
	return string(out)
}

// program builds a program of this repository, once. tags may be empty.
func program(t *testing.T, path, tags string) string {
	t.Helper()
	built.Lock()
	defer built.Unlock()
	if built.dir == "" {
		t.Fatal("TestMain made no folder")
	}
	to := filepath.Join(built.dir, filepath.Base(path)+tags)
	if _, err := os.Stat(to); err == nil {
		return to
	}
	c := exec.Command("go", "build", "-tags", tags, "-o", to, path)
	c.Dir = ".."
	c.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return to
}

var built struct {
	sync.Mutex
	dir string
}

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "deploy")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	built.dir = dir
	code := m.Run()
	_ = os.RemoveAll(dir)
	os.Exit(code)
}

// secrets has the secrets that a reader of docs/deployment.md makes.
var secrets = map[string]string{"huggingface token": "hf_abc", "kvindexd-admin token": "secret", "kvindexd-redis url": "redis://redis:6379", "kv-store password": "s3cret"}

// environment returns the variables that a container gets from Kubernetes in the namespace
// "inference". They include none of Services, as enableServiceLinks is false.
func environment(t *testing.T, c *core.Container) (env []string) {
	t.Helper()
	values := make(map[string]string)
	for _, e := range c.Env {
		value := e.Value
		switch from := e.ValueFrom; {
		case from == nil:
		case from.FieldRef != nil && from.FieldRef.FieldPath == "metadata.namespace":
			value = "inference"
		case from.SecretKeyRef != nil:
			var ok bool
			if value, ok = secrets[from.SecretKeyRef.Name+" "+from.SecretKeyRef.Key]; !ok {
				t.Errorf("%s: no such secret", e.Name)
			}
		default:
			t.Errorf("%s comes from elsewhere", e.Name)
		}
		values[e.Name] = expand(value, values)
		env = append(env, e.Name+"="+values[e.Name])
	}
	return env
}

// expand replaces $(NAME) by variables that are defined before, as Kubernetes does.
func expand(text string, values map[string]string) string {
	for name, value := range values {
		text = strings.ReplaceAll(text, "$("+name+")", value)
	}
	return text
}

// configured returns the settings of kvindexd in a folder, as kvindexd itself prints them.
func configured(t *testing.T, objects []object) map[string]string {
	t.Helper()
	c := &one[*apps.Deployment](t, objects).Spec.Template.Spec.Containers[0]
	dir := t.TempDir()
	for name, text := range one[*core.ConfigMap](t, objects).Data {
		must(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	args := []string{"check-config"}
	for _, a := range c.Args {
		args = append(args, strings.Replace(a, "/etc/kvindexd/", dir+"/", 1))
	}
	run := exec.Command(program(t, "./cmd/kvindexd", ""), args...)
	run.Env = environment(t, c)
	out, err := run.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return settingsOf(out)
}

// settingsOf parses the output of check-config.
func settingsOf(out []byte) map[string]string {
	settings := make(map[string]string)
	for lines := bufio.NewScanner(bytes.NewReader(out)); lines.Scan(); {
		if f := strings.Fields(lines.Text()); len(f) > 1 {
			settings[f[0]] = strings.Trim(f[1], `"`)
		}
	}
	return settings
}

// TestAgrees: ports, folders, memory and peers in the objects of a folder agree with the settings
// of kvindexd for addresses, files, bounds and endpoints.
func TestAgrees(t *testing.T) {
	for folder, replicas := range services {
		t.Run(folder, func(t *testing.T) {
			objects := build(t, folder)
			d := one[*apps.Deployment](t, objects)
			spec := &d.Spec.Template.Spec
			c := &spec.Containers[0]
			s := configured(t, objects)
			if *d.Spec.Replicas != replicas {
				t.Errorf("%d replicas, want %d", *d.Spec.Replicas, replicas)
			}

			// Ports: those that other pods reach.
			listens := []int32{portOf(t, s["listen"])}
			if host, _, _ := net.SplitHostPort(s["admin"]); host != "127.0.0.1" {
				listens = append(listens, portOf(t, s["admin"]))
			}
			ports := portsOf(c)
			if !sameSet(slices.Collect(maps.Values(ports)), listens) {
				t.Errorf("the ports are %v, kvindexd listens at %v", ports, listens)
			}
			for _, p := range []*core.Probe{c.StartupProbe, c.LivenessProbe, c.ReadinessProbe} {
				if p == nil {
					continue
				}
				if at := resolve(t, ports, p.HTTPGet.Port); at != listens[0] {
					t.Errorf("a probe asks port %d, kvindexd answers at %d", at, listens[0])
				}
			}
			agreesWithServices(t, objects, ports, d.Spec.Template.Labels)

			// Folders: each is on a mount, and folders that kvindexd writes are on a writable one.
			within(t, spec, s["hub-dir"], true)
			if s["snapshot"] != "" {
				within(t, spec, filepath.Dir(s["snapshot"]), true)
			}
			within(t, spec, strings.TrimPrefix(c.Args[0], "-config="), false)

			// Memory: the sum of the bounds fits into Go's limit, with a tenth to spare.
			if keep, most, limit := boundsOf(t, s), goLimit(t, c), memoryOf(t, c); keep > most || 10*most > 9*limit {
				t.Errorf("kvindexd keeps %d bytes, GOMEMLIMIT is %d, the limit of the container %d", keep, most, limit)
			}

			// Peers.
			var dials []int32
			if s["dns"] != "" || s["kubernetes"] != "none" {
				for _, p := range []string{"engine-port", "replay-port"} {
					dials = append(dials, portOf(t, ":"+s[p]))
				}
			} else if e := s["zmq-endpoint"]; !strings.Contains(e, "*") {
				dials = append(dials, portOf(t, strings.TrimPrefix(e, "tcp://")))
			}
			if s["dns"] == "" && s["kubernetes"] == "none" && s["zmq-endpoint"] == "none" {
				t.Error("there are no engines")
			}
			if s["download"] == "true" {
				dials = append(dials, 443)
			}
			for _, name := range []string{"redis", "bootstrap"} {
				if u, err := url.Parse(s[name]); err == nil && u.Host != "" {
					dials = append(dials, portOf(t, u.Host))
				}
			}
			if s["kubernetes"] != "none" {
				dials = append(dials, 443, 6443)
			}
			agreesWithPolicy(t, one[*networking.NetworkPolicy](t, objects), listens, append(dials, 53))
			isRestricted(t, spec, s["kubernetes"] != "none")
			if roles := all[*rbac.Role](objects); (len(roles) > 0) != (s["kubernetes"] != "none") {
				t.Errorf("%d roles", len(roles))
			}
			readsPods(t, objects, spec.ServiceAccountName)
		})
	}
}

// TestPicker is TestAgrees for the endpoint picker.
func TestPicker(t *testing.T) {
	objects := build(t, "overlays/epp")
	d := one[*apps.Deployment](t, objects)
	spec := &d.Spec.Template.Spec
	c := &spec.Containers[0]
	values := make(map[string]string)
	for _, e := range environment(t, c) {
		name, value, _ := strings.Cut(e, "=")
		values[name] = value
	}
	flags := defaults(t)
	for _, a := range c.Args {
		name, value, _ := strings.Cut(strings.TrimPrefix(a, "-"), "=")
		if _, ok := flags[name]; !ok {
			t.Errorf("kvindex-epp has no flag -%s", name)
		}
		flags[name] = expand(value, values)
	}
	ports := portsOf(c)
	listens := []int32{portOf(t, flags["listen"])}
	if !sameSet(slices.Collect(maps.Values(ports)), listens) {
		t.Errorf("the ports are %v, kvindex-epp listens at %v", ports, listens)
	}
	agreesWithServices(t, objects, ports, d.Spec.Template.Labels)
	dials := []int32{portOf(t, ":"+flags["event-port"]), portOf(t, ":"+flags["replay-port"]), 53, 443, 6443}
	agreesWithPolicy(t, one[*networking.NetworkPolicy](t, objects), listens, dials)
	isRestricted(t, spec, true)
	readsPods(t, objects, spec.ServiceAccountName)
	within(t, spec, flags["model-dir"], false)
	// Beside the flags: the prompt cache, predictions, and the tokenizer of the model.
	keep := bytesOf(t, flags["memory"]) + bytesOf(t, flags["max-buffered"]) + (64+64+256)<<20
	if most := goLimit(t, c); keep > most || 10*most > 9*memoryOf(t, c) {
		t.Errorf("GOMEMLIMIT is %d", most)
	}
	for _, p := range []*core.Probe{c.StartupProbe, c.LivenessProbe, c.ReadinessProbe} {
		// The program knows the command: it connects, and there is no server.
		out, err := exec.Command(program(t, "./epp/cmd/kvindex-epp", ""), append(p.Exec.Command[1:], "-address=127.0.0.1:1")...).CombinedOutput()
		if err == nil || !bytes.Contains(out, []byte("connection refused")) {
			t.Errorf("%q: %v: %s", p.Exec.Command, err, out)
		}
	}
	pool := one[*inferencePool](t, objects).Spec
	if fmt.Sprint(pool.TargetPorts[0].Number) != flags["target-port"] || pool.EndpointPickerRef.Port.Number != listens[0] || pool.EndpointPickerRef.Name != all[*core.Service](objects)[0].Name {
		t.Errorf("the pool is %+v", pool)
	}
	if selected, err := labels.Parse(flags["selector"]); err != nil || selected.String() != labels.SelectorFromSet(pool.Selector.MatchLabels).String() {
		t.Errorf("the pool selects %v, kvindex-epp %s", pool.Selector.MatchLabels, flags["selector"])
	}
}

// TestOffload: ports, folders, memory and space in the objects of kvoffload agree with its
// arguments, and the program accepts these.
func TestOffload(t *testing.T) {
	for _, folder := range []string{"janitor", "lmcache"} {
		t.Run(folder, func(t *testing.T) {
			objects := build(t, folder)
			pod := podOf(t, objects)
			c := &pod.Spec.Containers[0]
			flags := make(map[string]string)
			for _, a := range c.Args[1:] {
				name, value, ok := strings.Cut(strings.TrimPrefix(a, "-"), "=")
				if !ok {
					name, value = "dir", a // the root of the janitor
				}
				flags[name] = value
			}
			within(t, &pod.Spec, flags["dir"], true)
			listens := []int32{portOf(t, flags["listen"])}
			ports := portsOf(c)
			if !sameSet(slices.Collect(maps.Values(ports)), listens) {
				t.Errorf("the ports are %v, kvoffload listens at %v", ports, listens)
			}
			agreesWithServices(t, objects, ports, pod.Labels)
			agreesWithPolicy(t, one[*networking.NetworkPolicy](t, objects), listens, nil)
			isRestricted(t, &pod.Spec, false)
			if on := pod.Spec.EnableServiceLinks; on == nil || *on {
				t.Error("it has variables of Services")
			}
			room := all[*core.PersistentVolumeClaim](objects)
			run := exec.Command(program(t, "./offload/cmd/kvoffload", ""), "check-config", "-bytes="+flags["bytes"], t.TempDir())
			if folder == "lmcache" {
				set := one[*apps.StatefulSet](t, objects)
				room = []*core.PersistentVolumeClaim{&set.Spec.VolumeClaimTemplates[0]}
				within(t, &pod.Spec, flags["password-file"], false)
				if most := bytesOf(t, flags["memory"]); 10*most > 8*memoryOf(t, c) {
					t.Errorf("-memory=%s does not fit into the container", flags["memory"])
				}
				// The program accepts the arguments, up to a file that does not exist.
				run.Args = append(run.Args[:1], c.Args...)
				if out, err := run.CombinedOutput(); err == nil || !bytes.Contains(out, []byte("open "+flags["password-file"])) {
					t.Errorf("%v: %s", err, out)
				}
			} else if out, err := run.CombinedOutput(); err != nil {
				t.Errorf("%v: %s", err, out)
			}
			if most := bytesOf(t, flags["bytes"]); 10*most > 9*room[0].Spec.Resources.Requests.Storage().Value() {
				t.Errorf("-bytes=%s does not fit into the volume", flags["bytes"])
			}
		})
	}
}

// podOf returns the pod of a folder's Deployment or StatefulSet.
func podOf(t *testing.T, objects []object) *core.PodTemplateSpec {
	t.Helper()
	if sets := all[*apps.StatefulSet](objects); len(sets) == 1 {
		return &sets[0].Spec.Template
	}
	return &one[*apps.Deployment](t, objects).Spec.Template
}

// TestEngines: the folders follow the engines of the example, and no other pod can reach the ports
// of their events.
func TestEngines(t *testing.T) {
	objects := build(t, "engines")
	set := one[*apps.StatefulSet](t, objects)
	of := labels.Set(set.Spec.Template.Labels)
	ports := portsOf(&set.Spec.Template.Spec.Containers[0])
	service := one[*core.Service](t, objects)
	if service.Name != set.Spec.ServiceName || service.Spec.ClusterIP != "None" {
		t.Errorf("the Service %s is not the set's, or not headless", service.Name)
	}
	agreesWithServices(t, objects, ports, of)
	engine := strings.Join(set.Spec.Template.Spec.Containers[0].Args, "\n")
	for name, want := range map[string]string{"http": "--port=%d", "events": `"endpoint":"tcp://*:%d"`, "replay": `"replay_endpoint":"tcp://*:%d"`} {
		if !strings.Contains(engine, fmt.Sprintf(want, ports[name])) {
			t.Errorf("the engine has no %s", fmt.Sprintf(want, ports[name]))
		}
	}
	for folder := range services {
		if folder == "overlays/reference" { // its engine has another name
			continue
		}
		s := configured(t, build(t, folder))
		if fmt.Sprint(ports["events"], ports["replay"]) != s["engine-port"]+" "+s["replay-port"] {
			t.Errorf("%s follows other ports", folder)
		}
		if s["dns"] != "" && s["dns"] != service.Name+".inference.svc.cluster.local" {
			t.Errorf("%s follows %s", folder, s["dns"])
		}
		if s["kubernetes"] != "none" && (of["llm-d.ai/inference-serving"] != "true" || s["namespace"] != "inference") {
			t.Errorf("%s does not find the engines", folder)
		}
		if !strings.Contains(engine, "--model="+s["model"]) {
			t.Errorf("%s has the model %s", folder, s["model"])
		}
	}
	p := one[*networking.NetworkPolicy](t, objects).Spec
	for _, in := range p.Ingress {
		if len(in.From) == 0 || len(in.Ports) == 0 {
			t.Error("everybody can receive the events")
		}
		for _, from := range in.From {
			for _, stranger := range []labels.Set{{}, of, {"app": "redis"}} {
				if matches(t, from.PodSelector, stranger) {
					t.Errorf("%v can receive the events", stranger)
				}
			}
		}
	}
	for _, folder := range append(slices.Collect(maps.Keys(services)), "overlays/epp") {
		d := one[*apps.Deployment](t, build(t, folder))
		heard := 0
		for _, in := range p.Ingress {
			for _, from := range in.From {
				if matches(t, from.PodSelector, d.Spec.Template.Labels) {
					for _, at := range in.Ports {
						if n := at.Port.IntVal; n == ports["events"] || n == ports["replay"] {
							heard++
						}
					}
				}
			}
		}
		if heard != 2 {
			t.Errorf("%s reaches %d of the engines' ports of events, want 2", folder, heard)
		}
	}
}

// TestReference: the overlay has the names, variables, port, resources and probes of the reference
// deployment, except the path of the liveness probe. kvindexd accepts these variables without a file and
// arguments.
func TestReference(t *testing.T) {
	objects := build(t, "overlays/reference")
	d := one[*apps.Deployment](t, objects)
	c := &d.Spec.Template.Spec.Containers[0]
	if d.Name != "kv-cache-manager" || c.Name != "manager" || fmt.Sprint(d.Spec.Selector.MatchLabels) != "map[app:kv-cache-manager]" {
		t.Errorf("%s, %s, %v", d.Name, c.Name, d.Spec.Selector)
	}
	run := exec.Command(program(t, "./cmd/kvindexd", ""), "check-config")
	for name, value := range map[string]string{
		"PYTHONPATH":   "/app/pkg/preprocessing/chat_completions:/app/venv/lib/python3.12/site-packages",
		"ZMQ_ENDPOINT": "tcp://vllm-service:5557", "REDIS_ADDR": "redis://redis:6379",
	} {
		if !slices.Contains(c.Env, core.EnvVar{Name: name, Value: value}) {
			t.Errorf("%s is not %s", name, value)
		}
		run.Env = append(run.Env, name+"="+value)
	}
	out, err := run.CombinedOutput()
	if s := settingsOf(out); err != nil || s["zmq-endpoint"] != "tcp://vllm-service:5557" || s["redis"] != "redis://redis:6379" || s["listen"] != ":8080" {
		t.Errorf("%v: %s", err, out)
	}
	for _, r := range []struct {
		of          core.ResourceList
		cpu, memory string
	}{{c.Resources.Requests, "1", "2Gi"}, {c.Resources.Limits, "2", "4Gi"}} {
		if r.of.Cpu().String() != r.cpu || r.of.Memory().String() != r.memory {
			t.Errorf("%v, want %s and %s", r.of, r.cpu, r.memory)
		}
	}
	for _, p := range []struct {
		is            *core.Probe
		path          string
		delay, period int32
	}{{c.LivenessProbe, "/healthz", 10, 30}, {c.ReadinessProbe, "/score_completions", 5, 10}} {
		if p.is.HTTPGet.Path != p.path || p.is.HTTPGet.Port.IntVal != 8080 || p.is.InitialDelaySeconds != p.delay || p.is.PeriodSeconds != p.period {
			t.Errorf("the probe is %v", p.is)
		}
	}
}

// TestServiceLinks: the variable of a Service "kvindexd-engine" has the name of a setting and would keep
// kvindexd from starting, so no pod gets variables of Services. Variables of other Services are ignored.
func TestServiceLinks(t *testing.T) {
	for folder := range folders {
		for _, d := range all[*apps.Deployment](build(t, folder)) {
			if on := d.Spec.Template.Spec.EnableServiceLinks; on == nil || *on {
				t.Errorf("%s has variables of Services", folder)
			}
		}
	}
	for name, refused := range map[string]bool{"KVINDEXD_PEERS_PORT": false, "KVINDEXD_ENGINE_PORT": true} {
		run := exec.Command(program(t, "./cmd/kvindexd", ""), "check-config")
		run.Env = []string{name + "=tcp://10.0.0.1:8081"}
		if out, err := run.CombinedOutput(); (err != nil) != refused {
			t.Errorf("%s of a Service: %v\n%s", name, err, out)
		}
	}
}

func portOf(t *testing.T, address string) int32 {
	t.Helper()
	_, port, err := net.SplitHostPort(address)
	must(t, err)
	n, err := strconv.Atoi(port)
	if err != nil || n == 0 {
		t.Fatalf("%s has no port", address)
	}
	return int32(n)
}

func portsOf(c *core.Container) map[string]int32 {
	ports := make(map[string]int32)
	for _, p := range c.Ports {
		ports[p.Name] = p.ContainerPort
	}
	return ports
}

// resolve returns the number of a port of a container.
func resolve(t *testing.T, ports map[string]int32, p intstr.IntOrString) int32 {
	t.Helper()
	if p.Type == intstr.Int {
		return p.IntVal
	}
	n, ok := ports[p.StrVal]
	if !ok {
		t.Errorf("the container has no port %q", p.StrVal)
	}
	return n
}

func sameSet(a, b []int32) bool {
	a, b = slices.Sorted(slices.Values(a)), slices.Sorted(slices.Values(b))
	return slices.Equal(slices.Compact(a), slices.Compact(b))
}

func matches(t *testing.T, s *meta.LabelSelector, of labels.Set) bool {
	t.Helper()
	selector, err := meta.LabelSelectorAsSelector(s)
	must(t, err)
	return selector.Matches(of)
}

// agreesWithServices: Services lead to ports of the pods, and all selectors select the pods.
func agreesWithServices(t *testing.T, objects []object, ports map[string]int32, of labels.Set) {
	t.Helper()
	for _, s := range all[*core.Service](objects) {
		if !labels.SelectorFromSet(s.Spec.Selector).Matches(of) {
			t.Errorf("the Service %s selects no pod", s.Name)
		}
		for _, p := range s.Spec.Ports {
			if at := resolve(t, ports, p.TargetPort); at != p.Port {
				t.Errorf("the Service %s has port %d for %d", s.Name, p.Port, at)
			}
		}
	}
	var selectors []*meta.LabelSelector
	for _, d := range all[*apps.Deployment](objects) {
		selectors = append(selectors, d.Spec.Selector)
		for _, spread := range d.Spec.Template.Spec.TopologySpreadConstraints {
			selectors = append(selectors, spread.LabelSelector)
		}
		if len(selectors) < 2 && *d.Spec.Replicas > 1 {
			t.Error("the pods are not spread over nodes")
		}
	}
	for _, s := range all[*apps.StatefulSet](objects) {
		selectors = append(selectors, s.Spec.Selector)
	}
	for _, b := range all[*policy.PodDisruptionBudget](objects) {
		selectors = append(selectors, b.Spec.Selector)
		if n := b.Spec.MaxUnavailable; n == nil || n.IntVal != 1 || b.Spec.MinAvailable != nil {
			t.Errorf("the budget %s may keep a node from being drained", b.Name)
		}
	}
	for _, p := range all[*networking.NetworkPolicy](objects) {
		selectors = append(selectors, &p.Spec.PodSelector)
	}
	for _, s := range selectors {
		if !matches(t, s, of) || matches(t, s, labels.Set{}) {
			t.Errorf("%v does not select the pods, or more", s)
		}
	}
}

// agreesWithPolicy: a NetworkPolicy opens exactly the ports that the program listens on and dials,
// and pods without a label cannot reach the program.
func agreesWithPolicy(t *testing.T, p *networking.NetworkPolicy, listens, dials []int32) {
	t.Helper()
	var in, out []int32
	for _, rule := range p.Spec.Ingress {
		for _, at := range rule.Ports {
			in = append(in, at.Port.IntVal)
		}
		if len(rule.From) == 0 {
			t.Error("everybody may connect")
		}
		for _, from := range rule.From {
			if matches(t, from.PodSelector, labels.Set{}) {
				t.Error("a pod without labels may connect")
			}
		}
	}
	for _, rule := range p.Spec.Egress {
		for _, at := range rule.Ports {
			out = append(out, at.Port.IntVal)
		}
		if len(rule.Ports) == 0 {
			t.Error("all ports are open")
		}
	}
	if len(p.Spec.PolicyTypes) != 2 || !sameSet(in, listens) || !sameSet(out, dials) {
		t.Errorf("the policy %v lets %v in and %v out, want %v and %v", p.Spec.PolicyTypes, in, out, listens, dials)
	}
}

// isRestricted: the pod meets the Pod Security Standard "restricted", its root is read-only, and it
// has a token of the API server only if its program uses the API server.
func isRestricted(t *testing.T, spec *core.PodSpec, asks bool) {
	t.Helper()
	s := spec.SecurityContext
	if !*s.RunAsNonRoot || *s.RunAsUser != 65532 || *s.RunAsGroup != 65532 || s.SeccompProfile.Type != core.SeccompProfileTypeRuntimeDefault {
		t.Errorf("the pod may more than it needs: %v", s)
	}
	for _, c := range append(slices.Clone(spec.InitContainers), spec.Containers...) {
		s := c.SecurityContext
		if *s.AllowPrivilegeEscalation || !*s.ReadOnlyRootFilesystem || !slices.Equal(s.Capabilities.Drop, []core.Capability{"ALL"}) || s.Capabilities.Add != nil || s.Privileged != nil {
			t.Errorf("%s may more than it needs: %v", c.Name, s)
		}
		if c.Resources.Requests.Cpu().IsZero() || c.Resources.Requests.Memory().IsZero() || c.Resources.Limits.Memory().IsZero() {
			t.Errorf("%s has no requests or limits", c.Name)
		}
	}
	if token := spec.AutomountServiceAccountToken; (token == nil || *token) != asks {
		t.Errorf("a token of the API server is there: %v, want %v", !asks, asks)
	}
	if *spec.TerminationGracePeriodSeconds < 30 {
		t.Errorf("%d s are less than an end may take", *spec.TerminationGracePeriodSeconds)
	}
}

// readsPods: each Role allows to get, list and watch pods and nothing else, and is bound to the account.
func readsPods(t *testing.T, objects []object, account string) {
	t.Helper()
	if one[*core.ServiceAccount](t, objects).Name != account {
		t.Errorf("there is no account %s", account)
	}
	for _, r := range all[*rbac.Role](objects) {
		if want := []rbac.PolicyRule{{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"get", "list", "watch"}}}; fmt.Sprint(r.Rules) != fmt.Sprint(want) {
			t.Errorf("the Role may %v", r.Rules)
		}
		b := one[*rbac.RoleBinding](t, objects)
		if b.RoleRef.Name != r.Name || len(b.Subjects) != 1 || b.Subjects[0].Name != account {
			t.Errorf("%v binds %s", b.RoleRef, b.Subjects)
		}
	}
}

// within: a path is in a mount of the pod's first container.
func within(t *testing.T, spec *core.PodSpec, path string, written bool) {
	t.Helper()
	for _, m := range spec.Containers[0].VolumeMounts {
		if path != m.MountPath && !strings.HasPrefix(path, m.MountPath+"/") {
			continue
		}
		writable := !m.ReadOnly
		for _, v := range spec.Volumes { // and claims of a StatefulSet
			if v.Name == m.Name {
				writable = writable && v.ConfigMap == nil && v.Secret == nil
			}
		}
		if writable != written {
			t.Errorf("%s can be written: %v, want %v", path, writable, written)
		}
		return
	}
	t.Errorf("%s is on no volume", path)
}

// boundsOf returns the sum in bytes of the bounds in the settings of kvindexd, and of the bound of
// predictions, 64 MiB.
func boundsOf(t *testing.T, s map[string]string) int64 {
	t.Helper()
	sum := int64(64 << 20)
	for _, name := range []string{"memory", "prompt-cache", "tokenizer-memory", "max-bodies"} {
		if s[name] == "" && name == "prompt-cache" {
			s[name] = "64MiB"
		}
		sum += bytesOf(t, s[name])
	}
	return sum
}

func bytesOf(t *testing.T, text string) int64 {
	t.Helper()
	q, err := resource.ParseQuantity(strings.TrimSuffix(text, "B"))
	if err != nil {
		t.Fatalf("%q: %v", text, err)
	}
	return q.Value()
}

func memoryOf(t *testing.T, c *core.Container) int64 {
	t.Helper()
	for _, of := range []core.ResourceList{c.Resources.Requests, c.Resources.Limits} {
		for name := range of {
			if name != core.ResourceCPU && name != core.ResourceMemory {
				t.Errorf("%s is no resource of a container", name)
			}
		}
	}
	return c.Resources.Limits.Memory().Value()
}

func goLimit(t *testing.T, c *core.Container) int64 {
	t.Helper()
	for _, e := range c.Env {
		if e.Name == "GOMEMLIMIT" {
			return bytesOf(t, e.Value)
		}
	}
	t.Fatal("there is no GOMEMLIMIT")
	return 0
}

// defaults returns the defaults of the flags of kvindex-epp, from its usage.
func defaults(t *testing.T) map[string]string {
	t.Helper()
	out, err := exec.Command(program(t, "./epp/cmd/kvindex-epp", ""), "-h").CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	flags, name := make(map[string]string), ""
	for _, line := range strings.Split(string(out), "\n") {
		if rest, ok := strings.CutPrefix(line, "  -"); ok {
			name, _, _ = strings.Cut(rest, " ")
			flags[name] = ""
		}
		if _, def, ok := strings.Cut(line, "(default "); ok {
			flags[name] = strings.Trim(def, `")`)
		}
	}
	return flags
}
