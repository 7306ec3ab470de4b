package k8s

// The labels of AIBrix v0.7.0 (pkg/constants/model.go and pkg/constants/kv_event_sync.go).
const (
	aibrixModel   = "model.aibrix.ai/name"
	aibrixSwitch  = "model.aibrix.ai/kv-events-enabled"
	aibrixAdapter = "model.aibrix.ai/lora-id"
	aibrixHTTP    = "model.aibrix.ai/port"
	aibrixEngine  = "model.aibrix.ai/engine"
)

// AIBrix returns the Config for pods with the labels of AIBrix v0.7.0. namespace "" is all
// namespaces.
//
// A pod counts if model.aibrix.ai/kv-events-enabled is "true" and model.aibrix.ai/name is a
// label or an annotation of it (pkg/kvevent/manager.go, isPodSubscribable). The ports are 5557
// and 5558 for all pods (pkg/cache/kvcache/types.go): model.aibrix.ai/port is the HTTP port of
// the engine, and no port of events. That label, model.aibrix.ai/engine and
// model.aibrix.ai/lora-id are in events.Pod.Labels, for the host: the events name the adapter
// of a block. AIBrix accepts pods that are not Ready, and this Config does not: set Unready
// for that. AIBrix has no label for ranks and follows rank 0 alone: name one in Ranks.
func AIBrix(namespace string) Config {
	return Config{
		Namespace:     namespace,
		LabelSelector: aibrixSwitch, // with any value, so that an invalid one is reported
		Switch:        aibrixSwitch,
		Model:         From[string]{Key: aibrixModel},
		Port:          From[int]{Default: 5557},
		ReplayPort:    From[int]{Default: 5558},
		Labels:        []string{aibrixAdapter, aibrixHTTP, aibrixEngine},
	}
}

// LLMD returns the Config for pods with the labels of llm-d, as the pod discovery of
// llm-d-kv-cache v0.8.1 finds them: llm-d.ai/inference-serving is "true", the port is 5557,
// and there is no replay socket (pkg/kvevents/pool.go, DefaultPodReconcilerConfig). namespace
// "" is all namespaces.
//
// llm-d reads the model from the topic of each message (kv@pod@model). Here it is model for
// all pods: use a source for each model, each with a LabelSelector of its own, or name a label
// in Model. The label llm-d.ai/model is a short name and may differ from the one in requests.
// All topics are accepted; llm-d accepts those that begin with "kv@".
//
// Older charts set llm-d.ai/inferenceServing: for them change the LabelSelector.
func LLMD(namespace, model string) Config {
	return Config{
		Namespace:     namespace,
		LabelSelector: "llm-d.ai/inference-serving=true",
		Model:         From[string]{Default: model},
		Port:          From[int]{Default: 5557},
		Labels:        []string{"llm-d.ai/model", "llm-d.ai/role"},
	}
}
