package k8s

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kvindex/kvindex/events"
)

// there reports whether a pod of the cluster can be connected to.
func (c *Config) there(p *corev1.Pod) bool {
	return p.DeletionTimestamp == nil && p.Status.Phase == corev1.PodRunning && p.Status.PodIP != "" &&
		(c.Unready || slices.ContainsFunc(p.Status.Conditions, isReady))
}

func isReady(c corev1.PodCondition) bool {
	return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
}

// describe returns the events.Pod of a pod, or nil if the pod cannot be connected to. The
// error names invalid metadata.
func (c *Config) describe(p *corev1.Pod) (*events.Pod, error) {
	if !c.there(p) {
		return nil, nil
	}
	r := reader{p: p}
	if c.Switch != "" && !r.on(c.Switch) {
		return nil, r.err
	}
	pod := &events.Pod{
		ID:         p.Namespace + "/" + p.Name,
		Model:      r.text("model", c.Model),
		Host:       p.Status.PodIP,
		Port:       r.number("port", c.Port, maxPort),
		ReplayPort: r.number("replay port", c.ReplayPort, maxPort),
		TiersPort:  r.number("tiers port", c.TiersPort, maxPort),
		Ranks:      r.number("ranks", c.Ranks, maxRanks),
		Topic:      r.text("topic", c.Topic),
		UID:        string(p.UID),
		Labels:     chosen(p.Labels, c.Labels),
	}
	if c.ByAddress {
		pod.ID = p.Status.PodIP
	}
	if pod.Model == "" {
		r.bad("has no model: neither a label nor an annotation %s", c.Model.Key)
	}
	last := max(cmp.Or(pod.Port, defaultPort), pod.ReplayPort) + max(pod.Ranks, 1) - 1
	if last > maxPort {
		r.bad("has %d ranks (%s) and so a port %d, past %d (%s, %s)", pod.Ranks, c.Ranks.Key, last, maxPort, c.Port.Key, c.ReplayPort.Key)
	}
	if r.err != nil {
		return nil, r.err
	}
	return pod, nil
}

// A reader reads the metadata of a pod. It keeps the first error.
type reader struct {
	p   *corev1.Pod
	err error
}

func (r *reader) bad(format string, args ...any) {
	if r.err == nil {
		r.err = fmt.Errorf("k8s: pod %s/%s: "+format, append([]any{r.p.Namespace, r.p.Name}, args...)...)
	}
}

// value returns the label of a key, or else its annotation.
func (r *reader) value(key string) string {
	return cmp.Or(r.p.Labels[key], r.p.Annotations[key])
}

func (r *reader) on(key string) bool {
	switch v := r.value(key); v {
	case "true":
		return true
	case "false", "":
	default:
		r.bad("%s is %.100q, neither true nor false", key, v)
	}
	return false
}

func (r *reader) text(what string, from From[string]) string {
	v := r.value(from.Key)
	if len(v) > maxText {
		r.bad("%s (%s) has %d bytes, more than %d: %.100q...", from.Key, what, len(v), maxText, v)
	}
	return cmp.Or(v, from.Default)
}

func (r *reader) number(what string, from From[int], highest int) int {
	v := r.value(from.Key)
	if v == "" {
		return from.Default
	}
	n, err := strconv.Atoi(v)
	if err != nil || n < 1 || n > highest {
		r.bad("%s (%s) is %.100q, not a number in 1..%d", from.Key, what, v, highest)
	}
	return n
}

// trim drops the fields that describe does not read: most of a pod is its specification and
// the managers of its fields.
func (c *Config) trim(p *corev1.Pod) {
	keys := append([]string{c.Switch, c.Model.Key, c.Port.Key, c.ReplayPort.Key, c.TiersPort.Key, c.Ranks.Key, c.Topic.Key}, c.Labels...)
	*p = corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace:         p.Namespace,
			Name:              p.Name,
			UID:               p.UID,
			ResourceVersion:   p.ResourceVersion,
			CreationTimestamp: p.CreationTimestamp,
			DeletionTimestamp: p.DeletionTimestamp,
			Labels:            chosen(p.Labels, keys),
			Annotations:       chosen(p.Annotations, keys),
		},
		Status: corev1.PodStatus{
			Phase:      p.Status.Phase,
			PodIP:      p.Status.PodIP,
			Conditions: slices.DeleteFunc(p.Status.Conditions, func(c corev1.PodCondition) bool { return !isReady(c) }),
		},
	}
}

// chosen returns the entries of m that have one of the keys.
func chosen(m map[string]string, keys []string) map[string]string {
	var some map[string]string
	for _, k := range keys {
		if v, ok := m[k]; ok {
			if some == nil {
				some = make(map[string]string)
			}
			some[k] = v
		}
	}
	return some
}
