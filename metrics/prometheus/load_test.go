package prometheus_test

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/kvindex/kvindex/route/load"
)

// TestLoadOfPages: package route/load reads pages that Prometheus' library writes, with labels of any
// text, in its text format and in OpenMetrics'.
func TestLoadOfPages(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	for round := range 40 {
		registry := prometheus.NewRegistry()
		var gauges []*prometheus.GaugeVec
		for _, name := range []string{"vllm:num_requests_waiting", "vllm:num_requests_running", "vllm:num_requests_waiting_by_reason"} {
			g := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: "a \\ \n \"help\" of " + name}, []string{"model_name", "engine", "b"})
			registry.MustRegister(g)
			gauges = append(gauges, g)
		}
		var want []load.Report
		for rank := range 1 + r.IntN(4) {
			w := load.Report{Rank: rank, Waiting: r.IntN(1 << r.IntN(21)), Running: r.IntN(1000)}
			want = append(want, w)
			texts := make([]string, 2)
			for i := range texts {
				for range r.IntN(12) {
					texts[i] += string([]rune("\"\\\n{},= \té世#engine")[r.IntN(18)])
				}
			}
			for i, v := range []float64{float64(w.Waiting), float64(w.Running), 7} {
				gauges[i].WithLabelValues(texts[0], fmt.Sprint(rank), texts[1]).Set(v)
			}
		}
		for _, accept := range []string{"", "application/openmetrics-text;version=1.0.0"} {
			request, answer := httptest.NewRequest(http.MethodGet, "/metrics", nil), httptest.NewRecorder()
			request.Header.Set("Accept", accept)
			promhttp.HandlerFor(registry, promhttp.HandlerOpts{EnableOpenMetrics: true}).ServeHTTP(answer, request)
			page := answer.Body.String()
			if got, err := load.Read(answer.Body, 4); err != nil || !slices.Equal(got, want) {
				t.Fatalf("round %d: %v, %v, want %v of\n%s", round, got, err, want, page)
			}
		}
	}
}
