// A new experiment from another's code and an edited configuration, checked as it is typed with det check's own messages.
import { useEffect, useRef, useState } from "preact/hooks";
import { go } from "./address";
import { send, type Experiment } from "./api";
import { Dialog } from "./parts";

interface Problem {
  line: number | null;
  column: number | null;
  message: string;
}

export function Fork({ told, close }: { told: Experiment; close: () => void }) {
  const field = useRef<HTMLTextAreaElement>(null);
  const [config, setConfig] = useState(told.source);
  const [problems, setProblems] = useState<Problem[] | null>(null);
  const [refused, setRefused] = useState("");
  useEffect(() => {
    setProblems(null);
    let gone = false;
    const check = () =>
      send<{ errors: Problem[] }>("POST", "/check", { config, experiment: told.id }).then(
        ({ errors }) => !gone && setProblems(errors),
        (error: Error) => !gone && setRefused(error.message),
      );
    const timer = setTimeout(check, 250);
    return () => {
      gone = true;
      clearTimeout(timer);
    };
  }, [config]);
  const start = async () => {
    try {
      const { id } = await send<{ id: number }>("POST", `/experiments/${told.id}/fork`, { config });
      go(`/e/${id}/trials`);
    } catch (error) {
      setRefused((error as Error).message);
    }
  };
  const jump = ({ line, column }: Problem) => {
    const at = config.split("\n").slice(0, (line || 1) - 1).join("\n").length + (line && line > 1 ? 1 : 0) + (column || 1) - 1;
    field.current!.focus();
    field.current!.setSelectionRange(at, at);
  };
  return (
    <Dialog title={`Fork experiment ${told.id}`} onClose={close}>
      <p>A new experiment with this one’s code. It is checked as you type.</p>
      <textarea ref={field} value={config} spellcheck={false} aria-label="configuration" onInput={(event) => (setRefused(""), setConfig(event.currentTarget.value))} />
      <ul class="problems" aria-live="polite">
        {refused && <li>{refused}</li>}
        {problems?.map((each) => (
          <li key={`${each.line} ${each.column} ${each.message}`}>
            <button type="button" onClick={() => jump(each)}>
              {each.line || 1}:{each.column || 1}
            </button>{" "}
            {each.message}
          </li>
        ))}
      </ul>
      <div class="actions">
        <button disabled={!problems || problems.length > 0} onClick={start}>
          Start
        </button>
        <button onClick={close}>Back</button>
      </div>
    </Dialog>
  );
}
